// The same tiles hold twice as many bytes: 16 x 64 by 64 x 16 in the same 16 cycles, with either sign.
#include "gemm.h"
#include "micro_amx.h"

extern "C" void matmul(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k) {
    gemm::multiply<gemm::AmxInt8<T>>(gemm::contiguous(a, k), gemm::contiguous(b, n), out, m, n, k);
}
