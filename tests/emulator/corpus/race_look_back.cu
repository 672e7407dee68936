// A prefix sum over blocks by looking back, whose sums no fence orders before their flags.
#include <cstdio>

__device__ int sums[8], flags[8];

__global__ void prefix(const int* in, int* out) {
    __shared__ int before;
    int t = threadIdx.x, b = blockIdx.x, inclusive = in[b * 32 + t];
    for (int step = 1; step < 32; step *= 2) {
        int left = __shfl_up_sync(0xffffffff, inclusive, step);
        if (t >= step) inclusive += left;
    }
    if (t == 31) {
        int earlier = 0;
        if (b > 0) {
            while (atomicAdd(&flags[b - 1], 0) == 0) {}
            __threadfence();
            earlier = sums[b - 1];
        }
        sums[b] = earlier + inclusive;  // EXPECT: race-between-blocks
        atomicExch(&flags[b], 1);
        before = earlier;
    }
    __syncthreads();
    out[b * 32 + t] = before + inclusive;
}

int main() {
    const int n = 256;
    int host[n], *in, *out;
    for (int& value : host) value = 1;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    prefix<<<8, 32>>>(in, out);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    bool right = true;
    for (int i = 0; i < n; ++i) right &= host[i] == i + 1;
    std::puts(right ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
