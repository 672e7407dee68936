// Four terms of bytes in one instruction: vpdpbusd multiplies 64 pairs of bytes and adds them to 16 sums,
// where pairs widened to 16 bits take two instructions and twice the bytes. It wants one factor without
// sign: a signed A is packed 128 higher, and sums start 128 times the column of B lower.
#include "gemm.h"
#include "micro_avx512_vnni.h"

extern "C" void matmul(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k) {
    gemm::multiply<gemm::Avx512Vnni<T>>(gemm::contiguous(a, k), gemm::contiguous(b, n), out, m, n, k);
}
