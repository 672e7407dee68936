// Four terms of bytes in one instruction: vpdpbusd multiplies 64 pairs of bytes and adds them to 16 sums,
// where pairs widened to 16 bits take two instructions and twice the bytes. It wants one factor without
// sign: beside a signed A, B is packed 128 higher, and sums start 128 times the row of A lower.
#include "gemm.h"
#include "micro_avx512_vnni.h"

extern "C" void matmul(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k,
                       int64_t a_m_stride, int64_t a_k_stride, int64_t b_k_stride, int64_t b_n_stride) {
    const gemm::Operand<T> left{a, a_m_stride, a_k_stride};
    const gemm::Operand<U> right{b, b_k_stride, b_n_stride};
    gemm::multiply<gemm::Avx512Vnni<T>>(left, right, out, m, n, k);
}
