// v5, with stores past the caches once input and output exceed STREAM_MIB: then a store need not
// read its line first, 2 transfers a line instead of 3. 16 Mi floats on 2 threads took 0.7 to 0.9 of
// the time; what would have stayed in a 32 MiB cache is slower this way, up to 1.2.
#include "opwright/parallel.h"
#include "tanh_table.h"

extern "C" void threshold_activation(const T* x, T* out, int64_t n, double threshold, double alpha,
                                     double beta) {
    const bool past_cache = 2 * n * int64_t{sizeof(T)} > int64_t{STREAM_MIB} << 20;
    opw::parallel_for(n, GRAIN, [&](int64_t begin, int64_t end) {
        by_table::activate(x + begin, out + begin, end - begin, threshold, alpha, beta, past_cache);
    });
}
