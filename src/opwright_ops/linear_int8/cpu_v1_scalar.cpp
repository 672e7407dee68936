// The definition, one sum at a time, with libm's functions: what the other rungs are compared with.
#include <cmath>

#include "requantize.h"

namespace {

float activated(float y, int64_t activation) {
    switch (activation) {
        case activation_relu: return y < 0 ? 0.0f : y;
        case activation_gelu: return 0.5f * y * std::erfc(y * -0.70710678f);
        case activation_gelu_tanh: {
            const float inner = 0.79788456f * (y + 0.044715f * y * y * y);
            return 0.5f * y * (1.0f + std::tanh(inner));
        }
        case activation_silu: return y / (1.0f + std::exp(-y));
        case activation_threshold_activation: return y > 0.5f ? y : std::tanh(y);
        default: return y;
    }
}

}  // namespace

extern "C" void linear_int8(const T* x, const U* w, const V* bias, U* out, int64_t batch, int64_t n,
                            int64_t k, double scale, double out_scale, int64_t zero_point,
                            int64_t activation) {
    const linear_int8_layer::Scales scales{scale, out_scale, zero_point};
    for (int64_t i = 0; i < batch; ++i) {
        for (int64_t j = 0; j < n; ++j) {
            std::uint32_t sum = 0;  // wraps, where one with a sign would be undefined
            for (int64_t p = 0; p < k; ++p) {
                sum += static_cast<std::uint32_t>(std::int32_t{x[i * k + p]} * std::int32_t{w[j * k + p]});
            }
            const float y = scales.real(static_cast<std::int32_t>(sum), bias ? bias[j] : 0);
            out[i * n + j] = scales.quantized(activated(y, activation));
        }
    }
}
