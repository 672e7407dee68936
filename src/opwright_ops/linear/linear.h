// The product of matmul with an epilogue: bias, activation and rounding while a row of sums is in L1. A rung
// defines `Isa`, its instruction set, before it includes this; the C functions are at the end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "../matmul/gemm.h"
#include "activations.h"

namespace linear_layer {

template <class Isa> struct Finish {
    using Acc = typename Isa::Acc;
    const Acc* bias;
    int64_t activation;

    // Not inlined: six activations at each of a dozen places take seconds to compile.
    template <class Out>
    __attribute__((noinline)) void operator()(const Acc* sums, Out* out, int64_t col,
                                              int64_t count) const {
        using Functions = Activations<Isa>;
        const auto with = [&](auto function) { finish(sums, bias + col, out, count, function); };
        switch (activation) {
            case activation_relu: return with(Functions::relu);
            case activation_gelu: return with(Functions::gelu);
            case activation_gelu_tanh: return with(Functions::gelu_tanh);
            case activation_silu: return with(Functions::silu);
            case activation_threshold_activation: return with(Functions::threshold_activation);
            default: return with([](typename Isa::Vec y) { return y; });
        }
    }

private:
    template <class Out, class Function>
    static void finish(const Acc* sums, const Acc* bias, Out* out, int64_t count, Function function) {
        constexpr int64_t lanes = Isa::lanes;
        int64_t j = 0;
        for (; j + lanes <= count; j += lanes) {
            Isa::store(out + j, function(Isa::load(sums + j) + Isa::load(bias + j)));
        }
        if (j == count) return;
        const int rest = static_cast<int>(count - j);
        Out last[lanes];
        Isa::store(last, function(Isa::load_part(sums + j, rest) + Isa::load_part(bias + j, rest)));
        std::copy_n(last, rest, out + j);
    }
};

// x[batch, k] and bias[n] at any strides, or no bias (null), out[batch, n]; `w` is k x n, an Operand or packed.
template <class Isa, class Elem, class SourceW>
void linear(gemm::Operand<Elem> x, SourceW w, const Elem* bias, int64_t bias_stride, Elem* out,
            int64_t batch, int64_t n, int64_t k, int64_t activation) {
    using Acc = typename Isa::Acc;
    const std::unique_ptr<Acc[]> biases(new Acc[static_cast<std::size_t>(n)]);
    // Without a bias -0 is added, which changes no number, 0 of either sign among them: one epilogue for both.
    if (bias) {
        for (int64_t j = 0; j < n; ++j) biases[j] = static_cast<Acc>(bias[j * bias_stride]);
    } else {
        std::fill_n(biases.get(), n, Acc{-0.0f});
    }
    gemm::multiply<Isa>(x, w, out, batch, n, k, Finish<Isa>{biases.get(), activation});
}

}  // namespace linear_layer

extern "C" void linear(const T* x, const T* w, const T* bias, T* out, int64_t batch, int64_t n, int64_t k,
                       int64_t x_batch_stride, int64_t x_k_stride, int64_t w_n_stride, int64_t w_k_stride,
                       int64_t bias_n_stride, int64_t activation) {
    linear_layer::linear<Isa>(gemm::Operand<T>{x, x_batch_stride, x_k_stride},
                              gemm::Operand<T>{w, w_k_stride, w_n_stride}, bias, bias_n_stride, out, batch,
                              n, k, activation);
}

extern "C" int64_t linear_packed_bytes(int64_t n, int64_t k) { return gemm::packed_bytes<Isa>(n, k); }

extern "C" void linear_pack(const T* w, void* packed, int64_t n, int64_t k, int64_t w_n_stride,
                            int64_t w_k_stride) {
    gemm::pack<Isa>(gemm::Operand<T>{w, w_k_stride, w_n_stride}, static_cast<Isa::Packed_b*>(packed), n, k);
}

extern "C" void linear_packed(const T* x, const void* packed, const T* bias, T* out, int64_t batch,
                              int64_t n, int64_t k, int64_t x_batch_stride, int64_t x_k_stride,
                              int64_t bias_n_stride, int64_t activation) {
    linear_layer::linear<Isa>(gemm::Operand<T>{x, x_batch_stride, x_k_stride},
                              gemm::Packed<Isa>{static_cast<const Isa::Packed_b*>(packed)}, bias,
                              bias_n_stride, out, batch, n, k, activation);
}
