// Packed panels and a tile of sums in registers, with AVX2.
// A multiply-add no longer loads and stores its sums: 6 x 16 floats of C stay in 12 registers for 256
// terms, and 20 instructions do 12 multiply-adds of 8 floats.
#include "gemm.h"
#include "micro_avx2.h"

extern "C" void matmul(const T* a, const T* b, T* out, int64_t m, int64_t n, int64_t k) {
    gemm::multiply<gemm::Avx2<opw::acc_t<T>>>(a, b, out, m, n, k);
}
