// Both slopes computed, tanh by straight-line arithmetic: vectors of 8 floats or 4 doubles.
#include "slope.h"

extern "C" void threshold_activation_grad(const T* grad, const T* x, T* out, int64_t n,
                                          double threshold, double alpha) {
    slope::apply(grad, x, out, n, threshold, alpha);
}
