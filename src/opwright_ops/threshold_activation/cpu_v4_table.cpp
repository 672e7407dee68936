// tanh out of a table in registers: 5 lookups and 4 fma for 16 floats, no exponential, no division.
#include "tanh_table.h"

extern "C" void threshold_activation(const T* x, T* out, int64_t n, double threshold, double alpha,
                                     double beta) {
    by_table::activate(x, out, n, threshold, alpha, beta);
}
