// The same algorithm with AVX2 and FMA: 6 x 16 floats of C in 12 registers of 32 bytes, and 20
// instructions do 12 multiply-adds of 8 floats.
#include "gemm.h"
#include "micro_avx2.h"
#include "micro_pairs.h"

extern "C" void matmul(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k,
                       int64_t a_m_stride, int64_t a_k_stride, int64_t b_k_stride, int64_t b_n_stride) {
    const gemm::Operand<T> left{a, a_m_stride, a_k_stride};
    const gemm::Operand<U> right{b, b_k_stride, b_n_stride};
    gemm::multiply<gemm::Avx2<opw::acc_t<T>>>(left, right, out, m, n, k);
}
