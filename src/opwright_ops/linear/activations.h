// Activations in registers of floats or doubles, for any instruction set of matmul: no branch and no call but
// for the GELU of doubles, right for every number. All of them come down to one exponential.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../matmul/vectors.h"
#include "../threshold_activation/tanh_coefficients.h"
#include "normal_coefficients.h"

namespace linear_layer {

using std::int64_t;

// `half_ln2_high` and `half_ln2_low` are ln(2) / 2 in two parts, the first of so few bits that k times it is
// exact. exp(2 z) is a normal number from `least` on (below it 2^k, or the product, would be subnormal, which
// costs 4 to 150 cycles) and infinite from `most` on. tanh rounds to 1 before `one`.
template <class Real> struct Format;

template <> struct Format<float> {
    using Bits = std::uint32_t;
    static constexpr int mantissa = 23, bias = 127;
    static constexpr float round = 0x1.8p23f, least = -43.3f, most = 44.5f, one = 10.0f;
    static constexpr float half_ln2_high = 0x1.62ep-2f, half_ln2_low = 0x1.0bfbe8p-16f;
    static constexpr auto& expm1 = coefficients::expm1_float;
};

template <> struct Format<double> {
    using Bits = std::uint64_t;
    static constexpr int mantissa = 52, bias = 1023;
    static constexpr double round = 0x1.8p52, least = -354.0, most = 355.0, one = 20.0;
    static constexpr double half_ln2_high = 0x1.62e42fefp-2, half_ln2_low = 0x1.473de6af278edp-35;
    static constexpr auto& expm1 = coefficients::expm1_double;
};

// The probability that a normal number is more than `a` >= 0: by libm, which has it to an ulp or two. What is
// lost in rounding a / sqrt(2), a^2 / 2 roundoffs of the result, is put back by erfc's slope, which
// 1 / (z + sqrt(z^2 + 4 / pi)) gives to 4 %.
inline double upper_tail(double a) {
    constexpr double high = 0x1.6a09e667f3bcdp-1, low = -0x1.bdd3413b26456p-55;  // 1 / sqrt(2)
    const double z = a * high;
    if (z > 27) return 0;  // less than any number
    const double lost = std::fma(a, high, -z) + a * low;
    return 0.5 * std::erfc(z) * (1 - lost * (z + std::sqrt(z * z + 1.2732395447351628)));
}

template <class Isa> class Activations {
    using Real = typename Isa::Acc;
    using F = Format<Real>;
    using Vec = typename Isa::Vec;
    using Bits = typename F::Bits;
    using Word = gemm::Vector<Bits, Isa::lanes>;
    static constexpr Bits sign_bit = Bits{1} << (8 * sizeof(Real) - 1);

    static Vec everywhere(Real x) { return x - Vec{}; }

    template <int Size> static Vec polynomial(const Real (&c)[Size], Vec r) {
        Vec sum = everywhere(c[Size - 1]);
#pragma GCC unroll 16
        for (int i = Size - 2; i >= 0; --i) sum = Isa::fma(sum, r, everywhere(c[i]));
        return sum;
    }

    // exp(2 z) = power * (1 + rest): with z = k ln(2) / 2 + r, 2^k and r q(r), as tanh_exp.h has them.
    struct Exponential {
        Vec power, rest;
    };
    // For z >= least.
    static Exponential exponential(Vec z) {
        constexpr Real two_over_ln2 = static_cast<Real>(2.8853900817779268);
        const Vec shifted = Isa::fma(z, everywhere(two_over_ln2), everywhere(F::round));
        const Vec k = shifted - F::round;
        const Vec r = Isa::fma(k, everywhere(-F::half_ln2_low), Isa::fma(k, everywhere(-F::half_ln2_high), z));
        const Word bits = (reinterpret_cast<Word>(shifted) + Bits{F::bias}) << F::mantissa;
        return {reinterpret_cast<Vec>(bits), polynomial(F::expm1, r) * r};
    }
    static Vec exp_of_twice(Vec z) {
        const Exponential e = exponential(z);
        return e.power * (Real{1} + e.rest);
    }
    // Of any z: 2^k becomes infinite, which is right.
    static Vec exp_of_any_twice(Vec z) {
        z = z > F::most ? everywhere(F::most) : z;  // NaN is not greater: it stays
        return exp_of_twice(z < F::least ? everywhere(F::least) : z);
    }
    static Vec magnitude(Vec y) { return reinterpret_cast<Vec>(reinterpret_cast<Word>(y) & ~sign_bit); }

    // Q(a), the probability that a normal number is more than `a` >= 0.
    static Vec upper_tail(Vec a) {
        if constexpr (std::is_same_v<Real, double>) {
            for (int lane = 0; lane < Isa::lanes; ++lane) a[lane] = linear_layer::upper_tail(a[lane]);
            return a;
        } else {
            // Q(13.2) is less than the smallest normal number, and is taken for 0.
            const Vec z = a * a * -0.25f;
            const Vec t = 1.0f / Isa::fma(a, everywhere(1.0f / 3), everywhere(1.0f));
            const Vec tail = z < F::least ? Vec{} : t * polynomial(coefficients::tail, t);
            return exp_of_twice(z < F::least ? everywhere(F::least) : z) * tail;
        }
    }

public:
    static Vec relu(Vec y) { return y < Real{0} ? Vec{} : y; }

    // y times the probability that a normal number is less: 1 - Q(y), and Q(-y) below 0, where 1 - Q
    // would have lost all digits.
    static Vec gelu(Vec y) {
        const Vec q = upper_tail(magnitude(y));
        return y * (y < Real{0} ? q : Real{1} - q);
    }

    // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)).
    static Vec gelu_tanh(Vec y) {
        // sqrt(2 / pi), and 0.044715 times that
        constexpr Real c1 = static_cast<Real>(0.7978845608028654), c3 = static_cast<Real>(0.035677408136300125);
        const Vec u = y * Isa::fma(y * y, everywhere(c3), everywhere(c1));
        return y / (Real{1} + exp_of_any_twice(-u));
    }

    static Vec silu(Vec y) { return y / (Real{1} + exp_of_any_twice(y * static_cast<Real>(-0.5))); }

    // threshold_activation with its defaults: tanh is e / (e + 2) with e = exp(2 |y|) - 1.
    static Vec threshold_activation(Vec y) {
        const Word sign = reinterpret_cast<Word>(y) & sign_bit;
        const Vec a = reinterpret_cast<Vec>(reinterpret_cast<Word>(y) ^ sign);
        const Exponential x = exponential(a > F::one ? everywhere(F::one) : a);
        const Vec e = Isa::fma(x.power, x.rest, x.power - Real{1});
        const Vec tanh = reinterpret_cast<Vec>(reinterpret_cast<Word>(e / (e + Real{2})) | sign);
        return y > static_cast<Real>(0.5) ? y : tanh;
    }
};

}  // namespace linear_layer
