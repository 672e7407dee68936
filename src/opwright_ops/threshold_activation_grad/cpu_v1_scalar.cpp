// libm's tanh, called once an element: about 10 ns each, whatever the width of the vectors here.
#include <cmath>

#include "opwright/types.h"

extern "C" void threshold_activation_grad(const T* grad, const T* x, T* out, int64_t n,
                                          double threshold, double alpha) {
    using Real = opw::acc_t<T>;
    const Real t = static_cast<Real>(threshold);
    const Real a = static_cast<Real>(alpha);
    for (int64_t i = 0; i < n; ++i) {
        const Real v = x[i], g = grad[i];
        const Real bounded = std::tanh(v);
        out[i] = g * (v > t ? a : std::fma(-bounded, bounded, Real{1}));
    }
}
