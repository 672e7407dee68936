// Element types that C++17 lacks. Both convert to and from float, so arithmetic on them is
// float arithmetic; storing rounds to nearest, ties to even. No name here is a single capital
// letter: kernels get their element types as macros such as T.
#pragma once

#include <cstdint>
#include <cstring>

namespace opw {

namespace detail {

inline std::uint32_t float_bits(float x) {
    std::uint32_t u;
    std::memcpy(&u, &x, sizeof u);
    return u;
}

inline float bits_float(std::uint32_t u) {
    float x;
    std::memcpy(&x, &u, sizeof x);
    return x;
}

// Branch-free, so that loops over it vectorise.
inline std::uint16_t float_to_bf16(float x) {
    const std::uint32_t u = float_bits(x);
    const std::uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
    const std::uint32_t quiet_nan = (u >> 16) | 0x40u;
    return static_cast<std::uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? quiet_nan : rounded);
}

inline float bf16_to_float(std::uint16_t h) { return bits_float(std::uint32_t{h} << 16); }

inline std::uint16_t float_to_f16(float x) {
#if defined(__F16C__) && defined(__clang__)
    // One vcvtps2ph, and 8 or 16 at once in a loop. (The builtins below are gone from clang 22.)
    const __fp16 h = static_cast<__fp16>(x);
    std::uint16_t bits;
    std::memcpy(&bits, &h, sizeof bits);
    return bits;
#elif defined(__F16C__)
    using half8 = short __attribute__((vector_size(16)));
    using float4 = float __attribute__((vector_size(16)));
    const half8 h = __builtin_ia32_vcvtps2ph(float4{x, 0, 0, 0}, 0);
    return static_cast<std::uint16_t>(h[0]);
#else
    const std::uint32_t u = float_bits(x);
    const std::uint32_t sign = (u >> 16) & 0x8000u;
    const std::uint32_t a = u & 0x7FFFFFFFu;
    if (a > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u | ((a >> 13) & 0x3FFu));
    if (a >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // 65520 and up
    if (a < 0x38800000u) {
        // Below 2^-14: adding 0.5 puts the last bit of a half's subnormal (2^-24) at the last bit
        // of the sum, so the addition itself rounds to nearest even.
        return static_cast<std::uint16_t>(sign | (float_bits(bits_float(a) + 0.5f) - 0x3F000000u));
    }
    const std::uint32_t rounded = a + 0xFFFu + ((a >> 13) & 1u) - 0x38000000u;
    return static_cast<std::uint16_t>(sign | (rounded >> 13));
#endif
}

inline float f16_to_float(std::uint16_t h) {
#if defined(__F16C__) && defined(__clang__)
    __fp16 half;
    std::memcpy(&half, &h, sizeof half);
    return static_cast<float>(half);
#elif defined(__F16C__)
    using half8 = short __attribute__((vector_size(16)));
    const auto f = __builtin_ia32_vcvtph2ps(half8{static_cast<short>(h), 0, 0, 0, 0, 0, 0, 0});
    return f[0];
#else
    const std::uint32_t sign = std::uint32_t{h & 0x8000u} << 16;
    const std::uint32_t a = h & 0x7FFFu;
    if (a >= 0x7C00u) {
        const std::uint32_t quiet = a > 0x7C00u ? 0x400000u : 0u;
        return bits_float(sign | 0x7F800000u | (a & 0x3FFu) << 13 | quiet);
    }
    if (a >= 0x0400u) return bits_float(sign | ((a << 13) + 0x38000000u));
    return bits_float(sign | float_bits(static_cast<float>(a) * 5.9604644775390625e-8f));  // 2^-24
#endif
}

}  // namespace detail

struct bf16 {
    std::uint16_t bits;
    bf16() = default;
    bf16(float x) : bits(detail::float_to_bf16(x)) {}
    operator float() const { return detail::bf16_to_float(bits); }
};

struct f16 {
    std::uint16_t bits;
    f16() = default;
    f16(float x) : bits(detail::float_to_f16(x)) {}
    operator float() const { return detail::f16_to_float(bits); }
};

// The type to accumulate in: float for the short floats, wider integers for the short ones.
template <class Element> struct accumulator;
template <> struct accumulator<float> { using type = float; };
template <> struct accumulator<double> { using type = double; };
template <> struct accumulator<bf16> { using type = float; };
template <> struct accumulator<f16> { using type = float; };
template <> struct accumulator<std::int8_t> { using type = std::int32_t; };
template <> struct accumulator<std::uint8_t> { using type = std::int32_t; };
template <> struct accumulator<std::int32_t> { using type = std::int64_t; };
template <class Element> using acc_t = typename accumulator<Element>::type;

}  // namespace opw
