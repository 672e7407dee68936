// Tiles instead of vectors: one instruction multiplies 16 x 32 bfloat16 by 32 x 16 into 16 x 16 sums, 16
// times the work of a vdpbf16ps in 16 cycles, out of the same packed panels.
#include "gemm.h"
#include "micro_amx.h"

extern "C" void matmul(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k) {
    gemm::multiply<gemm::AmxBf16>(gemm::contiguous(a, k), gemm::contiguous(b, n), out, m, n, k);
}
