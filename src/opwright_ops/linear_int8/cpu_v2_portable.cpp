// matmul's blocked product: sums stay in registers and L1, and each row of them is scaled, rounded and stored
// as bytes while it is there, so that no int32 matrix is written.
#include "../matmul/gemm.h"
#include "../matmul/micro_pairs.h"
#include "requantize.h"

extern "C" void linear_int8(const T* x, const U* w, const V* bias, U* out, int64_t batch, int64_t n,
                            int64_t k, double scale, double out_scale, int64_t zero_point,
                            int64_t activation) {
    const linear_int8_layer::Scales scales{static_cast<float>(scale), static_cast<float>(out_scale),
                                           zero_point};
    const linear_int8_layer::Requantize<gemm::Portable<float>> epilogue{bias, scales, activation};
    const gemm::Operand<T> left{x, k, 1};
    const gemm::Operand<U> right{w, 1, k};  // stored [n, k]: the terms of a column are neighbours
    gemm::multiply<gemm::Portable<std::int32_t>>(left, right, out, batch, n, k, epilogue);
}
