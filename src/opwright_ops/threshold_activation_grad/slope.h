// The gradient by the same tanh as the activation's, so that one is the other's derivative to the
// last bits: no branch, and vectors of whatever width the compiler may use.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "../threshold_activation/tanh_exp.h"

namespace slope {

template <class Real>
void of_reals(const Real* grad, const Real* x, Real* out, std::int64_t n, Real threshold, Real alpha) {
    for (std::int64_t i = 0; i < n; ++i) {
        const Real v = x[i];
        const Real bounded = by_exp::tanh(v);
        const Real falling = std::fma(-bounded, bounded, Real{1});
        out[i] = grad[i] * (v > threshold ? alpha : falling);
    }
}

// Elements [0, n), for every element type.
template <class Element>
void apply(const Element* grad, const Element* x, Element* out, std::int64_t n, double threshold,
           double alpha) {
    using Real = opw::acc_t<Element>;
    const Real t = static_cast<Real>(threshold);
    const Real a = static_cast<Real>(alpha);
    if constexpr (sizeof(Element) == sizeof(Real)) {
        of_reals(grad, x, out, n, t, a);
    } else {
        constexpr std::int64_t block = 512;  // twice 2 KiB of floats, an eighth of a 32 KiB L1
        float grads[block], reals[block];
        for (std::int64_t i = 0; i < n; i += block) {
            const std::int64_t count = std::min(block, n - i);
            by_exp::widen(grad + i, grads, count);
            by_exp::widen(x + i, reals, count);
            of_reals(grads, reals, reals, count, t, a);
            by_exp::narrow(reals, out + i, count);
        }
    }
}

}  // namespace slope
