// The same algorithm with AVX-512: 12 x 32 floats of C in 24 of twice as many, twice as wide registers.
// 38 instructions do 24 multiply-adds of 16 floats, and panels of B are read half as often.
#include "gemm.h"
#include "micro_avx512.h"
#include "micro_pairs.h"

extern "C" void matmul(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k,
                       int64_t a_m_stride, int64_t a_k_stride, int64_t b_k_stride, int64_t b_n_stride) {
    const gemm::Operand<T> left{a, a_m_stride, a_k_stride};
    const gemm::Operand<U> right{b, b_k_stride, b_n_stride};
    gemm::multiply<gemm::Avx512<opw::acc_t<T>>>(left, right, out, m, n, k);
}
