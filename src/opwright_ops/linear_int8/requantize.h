// From exact sums to bytes: bias, scale, activation, rounding and saturation.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../linear/activations.h"

namespace linear_int8_layer {

using std::int64_t;

// What the attributes say, and the two ends of the way, element by element.
struct Scales {
    Scales(double sums, double outputs, int64_t zero)
        : scale(static_cast<float>(sums)), out_scale(static_cast<float>(outputs)), zero_point(zero) {}

    float scale, out_scale;
    int64_t zero_point;

    // Exact in double, since two 32-bit integers add to 33 bits; then rounded to float once.
    float real(std::int32_t sum, std::int32_t bias) const {
        return static_cast<float>(static_cast<double>(sum) + static_cast<double>(bias)) * scale;
    }

    // To the nearest whole number, ties to even, at a distance from the zero point that saturates.
    std::int8_t quantized(float x) const {
        constexpr float limit = 4194304;   // 2^22
        constexpr float shift = 12582912;  // 1.5 * 2^23: near it, floats are whole numbers
        float q = x / out_scale;
        q = q > -limit ? q : -limit;
        q = q < limit ? q : limit;
        const int64_t whole = static_cast<std::int32_t>((q + shift) - shift) + zero_point;
        return static_cast<std::int8_t>(whole < -128 ? -128 : whole > 127 ? 127 : whole);
    }
};

// The epilogue of gemm::multiply (see gemm.h), with activations in registers of `Float`.
template <class Float> struct Requantize {
    const std::int32_t* bias;
    Scales scales;
    int64_t activation;

    // Not inlined: six activations at each of a dozen places take seconds to compile.
    __attribute__((noinline)) void operator()(const std::int32_t* sums, std::int8_t* out, int64_t col,
                                              int64_t count) const {
        using Functions = linear_layer::Activations<Float>;
        const auto with = [&](auto function) { finish(sums, bias + col, out, count, function); };
        switch (activation) {
            case activation_relu: return with(Functions::relu);
            case activation_gelu: return with(Functions::gelu);
            case activation_gelu_tanh: return with(Functions::gelu_tanh);
            case activation_silu: return with(Functions::silu);
            case activation_threshold_activation: return with(Functions::threshold_activation);
            default: return with([](typename Float::Vec y) { return y; });
        }
    }

private:
    // A few registers at a time: the loops of integers at both ends become vectors by themselves.
    template <class Function>
    void finish(const std::int32_t* sums, const std::int32_t* biases, std::int8_t* out, int64_t count,
                Function function) const {
        constexpr int64_t piece = 64;
        float reals[piece] = {};
        for (int64_t first = 0; first < count; first += piece) {
            const int64_t here = std::min(piece, count - first);
            for (int64_t j = 0; j < here; ++j) reals[j] = scales.real(sums[first + j], biases[first + j]);
            for (int64_t j = 0; j < here; j += Float::lanes) {
                Float::store(reals + j, function(Float::load(reals + j)));
            }
            for (int64_t j = 0; j < here; ++j) out[first + j] = scales.quantized(reals[j]);
        }
    }
};

}  // namespace linear_int8_layer
