// Tiles instead of vectors: one instruction multiplies 16 x 32 bfloat16 by 32 x 16 into 16 x 16 sums, 16
// times the work of a vdpbf16ps in 16 cycles, out of the same packed panels.
#include "gemm.h"
#include "micro_amx.h"

extern "C" void matmul(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k,
                       int64_t a_m_stride, int64_t a_k_stride, int64_t b_k_stride, int64_t b_n_stride) {
    const gemm::Operand<T> left{a, a_m_stride, a_k_stride};
    const gemm::Operand<U> right{b, b_k_stride, b_n_stride};
    gemm::multiply<gemm::AmxBf16>(left, right, out, m, n, k);
}
