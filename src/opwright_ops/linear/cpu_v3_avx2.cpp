// The same with AVX2 and FMA: 8 floats a register, for the product as for the activations.
#include "../matmul/micro_avx2.h"

using Isa = gemm::Avx2<opw::acc_t<T>>;

#include "linear.h"
