// Tiles of 16 x 32 bfloat16, as matmul's rung has them.
#include "../matmul/micro_amx.h"

using Isa = gemm::AmxBf16;

#include "linear.h"
