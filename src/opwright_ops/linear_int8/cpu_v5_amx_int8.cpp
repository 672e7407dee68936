// Tiles of 16 x 16 sums, 16384 multiply-adds in 16 cycles: the epilogue is now what costs.
#include "../matmul/micro_amx.h"

using Isa = gemm::AmxInt8<T>;
using Float = gemm::Avx512<float>;

#include "linear_int8.h"
