// Activations in registers of floats, for any instruction set of matmul: no branch and no call, right for
// every float. All of them come down to one exponential.
#pragma once

#include <cstdint>
#include <cstring>

#include "../matmul/vectors.h"
#include "../threshold_activation/tanh_coefficients.h"
#include "normal_coefficients.h"

namespace linear_layer {

using std::int64_t;

template <class Isa> class Activations {
    using Vec = typename Isa::Vec;
    using Word = gemm::Vector<std::uint32_t, Isa::lanes>;

    static Vec everywhere(float x) { return x - Vec{}; }

    template <int Size> static Vec polynomial(const float (&c)[Size], Vec r) {
        Vec sum = everywhere(c[Size - 1]);
#pragma GCC unroll 16
        for (int i = Size - 2; i >= 0; --i) sum = Isa::fma(sum, r, everywhere(c[i]));
        return sum;
    }

    // exp(2 z) = power * (1 + rest): with z = k ln(2) / 2 + r, 2^k and r q(r), as tanh_exp.h has them.
    struct Exponential {
        Vec power, rest;
    };
    // For z >= least; below it 2^k, or exp(2 z), would be a subnormal number, which costs 4 to 150 cycles.
    static constexpr float least = -43.3f;
    static Exponential exponential(Vec z) {
        constexpr float two_over_ln2 = 2.88539004f, round = 0x1.8p23f;
        // ln(2) / 2 in two parts, the first of 12 bits: k times it is exact.
        constexpr float high = 0x1.62ep-2f, low = 0x1.0bfbe8p-16f;
        const Vec shifted = Isa::fma(z, everywhere(two_over_ln2), everywhere(round));
        const Vec k = shifted - round;
        const Vec r = Isa::fma(k, everywhere(-low), Isa::fma(k, everywhere(-high), z));
        const Word bits = (reinterpret_cast<Word>(shifted) + 127u) << 23;
        return {reinterpret_cast<Vec>(bits), polynomial(coefficients::expm1_float, r) * r};
    }
    static Vec exp_of_twice(Vec z) {
        const Exponential e = exponential(z);
        return e.power * (1.0f + e.rest);
    }
    // Of any z: 2^k becomes infinite, which is right, at k = 128.
    static Vec exp_of_any_twice(Vec z) {
        z = z > 44.5f ? everywhere(44.5f) : z;  // NaN is not greater: it stays
        return exp_of_twice(z < least ? everywhere(least) : z);
    }
    static Vec magnitude(Vec y) { return reinterpret_cast<Vec>(reinterpret_cast<Word>(y) & 0x7FFFFFFFu); }

public:
    static Vec relu(Vec y) { return y < 0.0f ? Vec{} : y; }

    // y times the probability that a normal number is less: 1 - Q(y), and Q(-y) below 0, where 1 - Q
    // would have lost all digits. Q(13.2) is less than the smallest normal number, and is taken for 0.
    static Vec gelu(Vec y) {
        const Vec a = magnitude(y), z = a * a * -0.25f;
        const Vec t = 1.0f / Isa::fma(a, everywhere(1.0f / 3), everywhere(1.0f));
        const Vec tail = z < least ? Vec{} : t * polynomial(coefficients::tail, t);
        const Vec q = exp_of_twice(z < least ? everywhere(least) : z) * tail;
        return y * (y < 0.0f ? q : 1.0f - q);
    }

    // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)).
    static Vec gelu_tanh(Vec y) {
        constexpr float c1 = 0.797884561f, c3 = 0.0356774081f;  // sqrt(2 / pi), and 0.044715 times that
        const Vec u = y * Isa::fma(y * y, everywhere(c3), everywhere(c1));
        return y / (1.0f + exp_of_any_twice(-u));
    }

    static Vec silu(Vec y) { return y / (1.0f + exp_of_any_twice(y * -0.5f)); }

    // threshold_activation with its defaults: tanh is e / (e + 2) with e = exp(2 |y|) - 1.
    static Vec threshold_activation(Vec y) {
        const Word sign = reinterpret_cast<Word>(y) & 0x80000000u;
        const Vec a = reinterpret_cast<Vec>(reinterpret_cast<Word>(y) ^ sign);
        const Exponential x = exponential(a > 10.0f ? everywhere(10.0f) : a);
        const Vec e = Isa::fma(x.power, x.rest, x.power - 1.0f);
        const Vec tanh = reinterpret_cast<Vec>(reinterpret_cast<Word>(e / (e + 2.0f)) | sign);
        return y > 0.5f ? y : tanh;
    }
};

}  // namespace linear_layer
