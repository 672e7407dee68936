// Two terms of bfloat16 in one instruction: vdpbf16ps multiplies pairs and adds both products to 16 sums,
// so that a product of bfloat16 takes half the multiply-adds and half the bytes of one widened to float.
// The instruction takes subnormal numbers as zero.
#include "gemm.h"
#include "micro_avx512_bf16.h"

extern "C" void matmul(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k) {
    gemm::multiply<gemm::Avx512Bf16>(gemm::contiguous(a, k), gemm::contiguous(b, n), out, m, n, k);
}
