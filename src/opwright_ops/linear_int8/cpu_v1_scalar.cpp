// The definition, one sum at a time: both operands are walked along k, where their terms are neighbours.
#include "requantize.h"

extern "C" void linear_int8(const T* x, const U* w, const V* bias, U* out, int64_t batch,
                            int64_t n, int64_t k, double scale, double out_scale, int64_t zero_point,
                            int64_t activation) {
    const linear_int8_kernel::Requantize epilogue(bias, scale, out_scale, zero_point, activation);
    for (int64_t i = 0; i < batch; ++i) {
        for (int64_t j = 0; j < n; ++j) {
            int32_t sum = 0;
            for (int64_t p = 0; p < k; ++p) sum += int32_t{x[i * k + p]} * int32_t{w[j * k + p]};
            epilogue(&sum, out + i * n + j, j, 1);
        }
    }
}
