// matmul's blocked product: sums stay in registers and L1, and each row of them is scaled, rounded and stored
// as bytes while it is there, so that no int32 matrix is written.
#include "../matmul/micro_pairs.h"

using Isa = gemm::Portable<std::int32_t>;
using Float = gemm::Portable<float>;

#include "linear_int8.h"
