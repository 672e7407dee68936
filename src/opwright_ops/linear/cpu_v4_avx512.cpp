// The same with AVX-512: 16 floats a register.
#include "../matmul/micro_avx512.h"

using Isa = gemm::Avx512<opw::acc_t<T>>;

#include "linear.h"
