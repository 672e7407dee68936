// Tiles of 16 x 16 sums, 16384 multiply-adds in 16 cycles: the epilogue is now what costs.
#include "../matmul/gemm.h"
#include "../matmul/micro_amx.h"
#include "requantize.h"

extern "C" void linear_int8(const T* x, const U* w, const V* bias, U* out, int64_t batch, int64_t n,
                            int64_t k, double scale, double out_scale, int64_t zero_point,
                            int64_t activation) {
    const linear_int8_layer::Scales scales{static_cast<float>(scale), static_cast<float>(out_scale),
                                           zero_point};
    const linear_int8_layer::Requantize<gemm::Avx512<float>> epilogue{bias, scales, activation};
    const gemm::Operand<T> left{x, k, 1};
    const gemm::Operand<U> right{w, 1, k};  // stored [n, k]: the terms of a column are neighbours
    gemm::multiply<gemm::AmxInt8<T>>(left, right, out, batch, n, k, epilogue);
}
