// The same tiles hold twice as many bytes: 16 x 64 by 64 x 16 in the same 16 cycles, with either sign.
#include "gemm.h"
#include "micro_amx.h"

extern "C" void matmul(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k,
                       int64_t a_m_stride, int64_t a_k_stride, int64_t b_k_stride, int64_t b_n_stride) {
    const gemm::Operand<T> left{a, a_m_stride, a_k_stride};
    const gemm::Operand<U> right{b, b_k_stride, b_n_stride};
    gemm::multiply<gemm::AmxInt8<T>>(left, right, out, m, n, k);
}
