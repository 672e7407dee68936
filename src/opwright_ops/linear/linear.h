// The product of matmul with an epilogue: bias, activation and rounding while a row of sums is in L1.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "../matmul/gemm.h"
#include "activations.h"

namespace linear_layer {

template <class Isa> struct Finish {
    const float* bias;
    int64_t activation;

    template <class Out>
    void operator()(const float* sums, Out* out, int64_t col, int64_t count) const {
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
    static void finish(const float* sums, const float* bias, Out* out, int64_t count,
                       Function function) {
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

// x[batch, k], w[n, k] and bias[n] at any strides, out[batch, n].
template <class Isa, class Elem>
void linear(gemm::Operand<Elem> x, gemm::Operand<Elem> w, const Elem* bias, int64_t bias_stride, Elem* out,
            int64_t batch, int64_t n, int64_t k, int64_t activation) {
    const std::unique_ptr<float[]> biases(new float[static_cast<std::size_t>(n)]);
    for (int64_t j = 0; j < n; ++j) biases[j] = static_cast<float>(bias[j * bias_stride]);
    const gemm::Operand<Elem> turned{w.data, w.col_stride, w.row_stride};
    gemm::multiply<Isa>(x, turned, out, batch, n, k, Finish<Isa>{biases.get(), activation});
}

}  // namespace linear_layer
