// One pass: the sums of matmul's packed panels get their bias and activation while they are in L1, instead
// of being written and read again. Activations are straight-line vectors; libm's take 10 to 30 ns each.
#include "../matmul/micro_portable.h"

using Isa = gemm::Portable<opw::acc_t<T>>;

#include "linear.h"
