// The table of v4 on every thread granted.
#include "opwright/parallel.h"
#include "tanh_table.h"

extern "C" void threshold_activation(const T* x, T* out, int64_t n, double threshold, double alpha,
                                     double beta) {
    opw::parallel_for(n, GRAIN, [&](int64_t begin, int64_t end) {
        by_table::activate(x + begin, out + begin, end - begin, threshold, alpha, beta);
    });
}
