// The same with AVX2: 16 products of 16 bits an instruction instead of 8.
#include "../matmul/gemm.h"
#include "../matmul/micro_pairs.h"
#include "requantize.h"

extern "C" void linear_int8(const T* x, const U* w, const V* bias, U* out, int64_t batch,
                            int64_t n, int64_t k, double scale, double out_scale, int64_t zero_point,
                            int64_t activation) {
    const linear_int8_kernel::Requantize epilogue(bias, scale, out_scale, zero_point, activation);
    const gemm::Operand<T> left{x, k, 1};
    const gemm::Operand<int8_t> right{w, 1, k};
    gemm::multiply<gemm::Avx2<std::int32_t>>(left, right, out, batch, n, k, epilogue);
}
