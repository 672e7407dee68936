// Pairs of bfloat16 in one instruction, as matmul's rung has them: half the multiply-adds and half the
// bytes; bias and activation are float as before. The instruction takes subnormal numbers as zero.
#include "../matmul/micro_avx512_bf16.h"

using Isa = gemm::Avx512Bf16;

#include "linear.h"
