// Two terms of bfloat16 in one instruction: vdpbf16ps multiplies pairs and adds both products to 16 sums,
// so that a product of bfloat16 takes half the multiply-adds and half the bytes of one widened to float.
// The instruction takes subnormal numbers as zero.
#include "gemm.h"
#include "micro_avx512_bf16.h"

extern "C" void matmul(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k,
                       int64_t a_m_stride, int64_t a_k_stride, int64_t b_k_stride, int64_t b_n_stride) {
    const gemm::Operand<T> left{a, a_m_stride, a_k_stride};
    const gemm::Operand<U> right{b, b_k_stride, b_n_stride};
    gemm::multiply<gemm::Avx512Bf16>(left, right, out, m, n, k);
}
