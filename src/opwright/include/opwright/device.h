// For kernels in the CUDA dialect, with any compiler of it: the type to accumulate in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "types.h"

namespace opw {

template <> struct accumulator<__half> { using type = float; };
template <> struct accumulator<__nv_bfloat16> { using type = float; };

}  // namespace opw
