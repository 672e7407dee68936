// One kernel that does, or does not do, what the attribute `act` says. Lines are marked by name.
#include <cstdlib>

extern "C" __global__ void probed(const T* x, T* out, int64_t n, int64_t act) {
    __shared__ T shared[64];
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (act == 1) {
        out[i] = x[i + n];  // @beyond
        return;
    }
    if (i < n) out[i] = x[i];
    if (act == 2) {
        shared[threadIdx.x] = T{1};               // @racing-write
        const T other = shared[threadIdx.x ^ 1];  // @racing-read
        if (i < n) out[i] = other;
    }
    if (act == 3 && i == 0) out[n - 1] += x[0];  // @unwritten (block 0 runs before the last one)
    if (act == 4 && i == 0) const_cast<T*>(x)[n / 2] = T{7};
    if (act == 5) {
        volatile T* word = out;
        while (word[0] != T{12345}) {
        }
    }
    if (act == 6 && i == 0 && n >= 16) {
        const float4 four = reinterpret_cast<const float4*>(x)[0];  // @misaligned
        out[0] = static_cast<T>(four.x * 0 + four.w);
    }
    if (act == 7 && i == 0) printf("so far so good\n"), abort();  // @abort
    if (act == 8 && threadIdx.x < 32) __syncthreads();  // @barrier
}
