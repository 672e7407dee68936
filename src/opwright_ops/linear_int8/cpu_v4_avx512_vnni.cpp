// Bytes are multiplied as they are, 64 an instruction; the epilogue takes 16 sums at a time.
#include "../matmul/micro_avx512_vnni.h"

using Isa = gemm::Avx512Vnni<T>;
using Float = gemm::Avx512<float>;

#include "linear_int8.h"
