// The same with AVX2: 16 products of 16 bits an instruction instead of 8.
#include "../matmul/micro_pairs.h"

using Isa = gemm::Avx2<std::int32_t>;
using Float = gemm::Avx2<float>;

#include "linear_int8.h"
