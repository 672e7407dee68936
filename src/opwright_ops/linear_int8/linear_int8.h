// The product of matmul with an epilogue that makes bytes of its sums. A rung defines `Isa`, its instruction
// set, and `Float`, that of the activations, before it includes this.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "../matmul/gemm.h"
#include "requantize.h"

namespace linear_int8_layer {

// `w` is k x n, an Operand or packed; the other operands lie at any strides. `bias` may be null.
template <class SourceW>
void linear(gemm::Operand<T> x, SourceW w, const V* bias, int64_t bias_stride, U* out, int64_t batch,
            int64_t n, int64_t k, const Scales& scales, int64_t activation) {
    const std::unique_ptr<V[]> biases(new V[static_cast<std::size_t>(n)]);
    if (bias) {
        for (int64_t j = 0; j < n; ++j) biases[j] = bias[j * bias_stride];
    } else {
        std::fill_n(biases.get(), n, V{0});
    }
    gemm::multiply<Isa>(x, w, out, batch, n, k, Requantize<Float>{biases.get(), scales, activation});
}

}  // namespace linear_int8_layer

extern "C" void linear_int8(const T* x, const U* w, const V* bias, U* out, int64_t batch, int64_t n,
                            int64_t k, int64_t x_batch_stride, int64_t x_k_stride, int64_t w_n_stride,
                            int64_t w_k_stride, int64_t bias_n_stride, double scale, double out_scale,
                            int64_t zero_point, int64_t activation) {
    linear_int8_layer::linear(gemm::Operand<T>{x, x_batch_stride, x_k_stride},
                              gemm::Operand<U>{w, w_k_stride, w_n_stride}, bias, bias_n_stride, out, batch,
                              n, k, {scale, out_scale, zero_point}, activation);
}

extern "C" int64_t linear_int8_packed_bytes(int64_t n, int64_t k) { return gemm::packed_bytes<Isa>(n, k); }

extern "C" void linear_int8_pack(const U* w, void* packed, int64_t n, int64_t k, int64_t w_n_stride,
                                 int64_t w_k_stride) {
    gemm::pack<Isa>(gemm::Operand<U>{w, w_k_stride, w_n_stride}, static_cast<Isa::Packed_b*>(packed), n, k);
}

extern "C" void linear_int8_packed(const T* x, const void* packed, const V* bias, U* out, int64_t batch,
                                   int64_t n, int64_t k, int64_t x_batch_stride, int64_t x_k_stride,
                                   int64_t bias_n_stride, double scale, double out_scale,
                                   int64_t zero_point, int64_t activation) {
    linear_int8_layer::linear(gemm::Operand<T>{x, x_batch_stride, x_k_stride},
                              gemm::Packed<Isa>{static_cast<const Isa::Packed_b*>(packed)}, bias,
                              bias_n_stride, out, batch, n, k,
                              {scale, out_scale, zero_point}, activation);
}
