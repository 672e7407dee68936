// The same with AVX-512: 16 floats a register.
#include "linear.h"
#include "../matmul/micro_avx512.h"

extern "C" void linear(const T* x, const T* w, const T* bias, T* out, int64_t batch, int64_t n,
                       int64_t k, int64_t x_batch_stride, int64_t x_k_stride, int64_t w_n_stride,
                       int64_t w_k_stride, int64_t bias_n_stride, int64_t activation) {
    linear_layer::linear<gemm::Avx512<float>>(gemm::Operand<T>{x, x_batch_stride, x_k_stride},
                                     gemm::Operand<T>{w, w_n_stride, w_k_stride}, bias, bias_n_stride, out,
                                     batch, n, k, activation);
}
