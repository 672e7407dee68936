// The vectors of v2 on every thread granted. A range of GRAIN elements is work for about 10 us, ten
// times what it costs to wake a thread.
#include "opwright/parallel.h"
#include "slope.h"

extern "C" void threshold_activation_grad(const T* grad, const T* x, T* out, int64_t n,
                                          double threshold, double alpha) {
    opw::parallel_for(n, GRAIN, [&](int64_t begin, int64_t end) {
        slope::apply(grad + begin, x + begin, out + begin, end - begin, threshold, alpha);
    });
}
