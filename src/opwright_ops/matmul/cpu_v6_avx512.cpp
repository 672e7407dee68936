// The same algorithm with AVX-512: 12 x 32 floats of C in 24 of twice as many, twice as wide registers.
// 38 instructions do 24 multiply-adds of 16 floats, and panels of B are read half as often.
#include "gemm.h"
#include "micro_avx512.h"
#include "micro_pairs.h"

extern "C" void matmul(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k) {
    gemm::multiply<gemm::Avx512<opw::acc_t<T>>>(gemm::contiguous(a, k), gemm::contiguous(b, n), out, m,
                                                n, k);
}
