// Packed panels and a tile of sums in registers, in whatever vectors the machine has.
// A multiply-add no longer loads and stores its sums: 4 x 8 floats of C stay in 8 registers for 256
// terms. Packing puts what is read next side by side, and threads share the columns and rows.
#include "gemm.h"
#include "micro_portable.h"
#include "micro_pairs.h"

extern "C" void matmul(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k,
                       int64_t a_m_stride, int64_t a_k_stride, int64_t b_k_stride, int64_t b_n_stride) {
    const gemm::Operand<T> left{a, a_m_stride, a_k_stride};
    const gemm::Operand<U> right{b, b_k_stride, b_n_stride};
    gemm::multiply<gemm::Portable<opw::acc_t<T>>>(left, right, out, m, n, k);
}
