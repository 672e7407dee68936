// The activation by tanh(x) = e / (e + 2) with e = exp(2 |x|) - 1: no branch, no call and no table,
// so that a compiler turns the loop into vectors of whatever width it may use.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "opwright/types.h"
#include "tanh_coefficients.h"

namespace by_exp {

template <class Real> struct Format;

template <> struct Format<float> {
    using Bits = std::uint32_t;
    static constexpr int mantissa = 23, bias = 127;
    static constexpr float limit = 10.0f;  // tanh rounds to 1 from 9.02 on
    static constexpr float round = 0x1.8p23f;
    static constexpr auto& q = coefficients::expm1_float;
};

template <> struct Format<double> {
    using Bits = std::uint64_t;
    static constexpr int mantissa = 52, bias = 1023;
    static constexpr double limit = 20.0;  // from 19.1 on
    static constexpr double round = 0x1.8p52;
    static constexpr auto& q = coefficients::expm1_double;
};

// 2^k for the integer k in the low bits of k + Format::round.
template <class Real> inline Real power_of_two(Real shifted) {
    using F = Format<Real>;
    typename F::Bits bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + F::bias) << F::mantissa;
    Real power;
    std::memcpy(&power, &bits, sizeof power);
    return power;
}

// c[0] + r (c[1] + ...), unrolled by the language: a loop in here would not be left to vectorise.
template <std::size_t first = 0, class Real, std::size_t size>
inline Real polynomial(const Real (&c)[size], Real r) {
    if constexpr (first + 1 == size) {
        return c[first];
    } else {
        return std::fma(polynomial<first + 1>(c, r), r, c[first]);
    }
}

template <class Real> inline Real tanh(Real x) {
    using F = Format<Real>;
    constexpr Real two_over_ln2 = static_cast<Real>(2.8853900817779268);
    constexpr Real half_ln2 = static_cast<Real>(0.34657359027997264);
    const Real a = std::fabs(x);
    const Real z = a > F::limit ? F::limit : a;  // NaN > limit is false: NaN stays
    // z = k ln(2) / 2 + r. Adding 1.5 * 2^mantissa leaves k, rounded, in the sum's low bits.
    const Real shifted = std::fma(z, two_over_ln2, F::round);
    const Real r = std::fma(F::round - shifted, half_ln2, z);
    // exp(2z) - 1 = 2^k (exp(2r) - 1) + (2^k - 1): no cancellation, so small x keep all their bits.
    const Real power = power_of_two(shifted);
    const Real e = std::fma(power, polynomial(F::q, r) * r, power - 1);
    return std::copysign(e / (e + 2), x);
}

template <class Real>
void activate_reals(const Real* x, Real* out, std::int64_t n, Real threshold, Real alpha, Real beta) {
    for (std::int64_t i = 0; i < n; ++i) {
        const Real v = x[i];
        const Real linear = std::fma(alpha, v, beta);
        const Real bounded = by_exp::tanh(v);
        out[i] = v > threshold ? linear : bounded;
    }
}

// `n` 16-bit elements to floats, and back.
inline void widen(const opw::bf16* from, float* to, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = from[i];
}

inline void narrow(const float* from, opw::bf16* to, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = from[i];
}

// One instruction converts eight halves, but g++ does not make it out of a loop over opw::f16.
inline void widen(const opw::f16* from, float* to, std::int64_t n) {
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
    }
    for (; i < n; ++i) to[i] = from[i];
}

inline void narrow(const float* from, opw::f16* to, std::int64_t n) {
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 floats = _mm256_loadu_ps(from + i);
        const __m128i halves = _mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
    }
    for (; i < n; ++i) to[i] = from[i];
}

// Elements [0, n) of x to out, for every element type.
template <class Element>
void activate(const Element* x, Element* out, std::int64_t n, double threshold, double alpha,
              double beta) {
    using Real = opw::acc_t<Element>;
    const Real t = static_cast<Real>(threshold);
    const Real a = static_cast<Real>(alpha);
    const Real b = static_cast<Real>(beta);
    if constexpr (sizeof(Element) == sizeof(Real)) {
        activate_reals(x, out, n, t, a, b);
    } else {
        constexpr std::int64_t block = 512;  // 2 KiB of floats, a sixteenth of a 32 KiB L1
        float reals[block];
        for (std::int64_t i = 0; i < n; i += block) {
            const std::int64_t count = std::min(block, n - i);
            widen(x + i, reals, count);
            activate_reals(reals, reals, count, t, a, b);
            narrow(reals, out + i, count);
        }
    }
}

}  // namespace by_exp
