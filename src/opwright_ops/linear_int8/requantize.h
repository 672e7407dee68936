// From exact sums to bytes: bias, scale, activation and rounding, applied to each row of sums while they are
// in cache.
#pragma once

#include <cmath>
#include <cstdint>

namespace linear_int8_kernel {

using std::int64_t;

// What the prelude's constants activation_none, activation_relu ... number.
enum class Activation : int64_t { none, relu, gelu, gelu_tanh, silu };

inline float activate(float x, Activation activation) {
    switch (activation) {
        case Activation::none: return x;
        case Activation::relu: return x > 0 ? x : 0;
        case Activation::gelu: return 0.5f * x * (1 + std::erf(x * 0.70710678f));
        case Activation::gelu_tanh: {
            // x / (1 + exp(-2z)) is 0.5 x (1 + tanh(z)), and far from 0 neither overflows nor cancels.
            const float z = 0.79788456f * (x + 0.044715f * x * x * x);
            return x / (1 + std::exp(-2 * z));
        }
        case Activation::silu: return x / (1 + std::exp(-x));
    }
    return x;
}

// An epilogue of gemm::multiply (see gemm.h).
class Requantize {
public:
    Requantize(const std::int32_t* bias, double scale, double out_scale, int64_t zero_point,
               int64_t activation)
        : bias_(bias), scale_(static_cast<float>(scale)), out_scale_(static_cast<float>(out_scale)),
          zero_point_(zero_point), activation_(static_cast<Activation>(activation)) {}

    void operator()(const std::int32_t* sums, std::int8_t* out, int64_t col, int64_t count) const {
        const std::int32_t* bias = bias_ + col;
        if (activation_ == Activation::none) {
            for (int64_t j = 0; j < count; ++j) out[j] = quantize(real(sums[j], bias[j]));
        } else if (activation_ == Activation::relu) {
            for (int64_t j = 0; j < count; ++j) {
                const float x = real(sums[j], bias[j]);
                out[j] = quantize(x > 0 ? x : 0);
            }
        } else {
            for (int64_t j = 0; j < count; ++j) {
                out[j] = quantize(activate(real(sums[j], bias[j]), activation_));
            }
        }
    }

private:
    // Exact in double, since two 32-bit integers add to 33 bits; then rounded to float once.
    float real(std::int32_t sum, std::int32_t bias) const {
        return static_cast<float>(static_cast<double>(sum) + static_cast<double>(bias)) * scale_;
    }

    // To the nearest whole number, ties to even, at a distance from the zero point that saturates.
    std::int8_t quantize(float x) const {
        constexpr float limit = 4194304;  // 2^22: what is added rounds there to whole numbers
        constexpr float shift = 12582912;  // 1.5 * 2^23
        float q = x / out_scale_;
        q = q > -limit ? q : -limit;
        q = q < limit ? q : limit;
        const int64_t whole = static_cast<std::int32_t>((q + shift) - shift) + zero_point_;
        return static_cast<std::int8_t>(whole < -128 ? -128 : whole > 127 ? 127 : whole);
    }

    const std::int32_t* bias_;
    float scale_, out_scale_;
    int64_t zero_point_;
    Activation activation_;
};

}  // namespace linear_int8_kernel
