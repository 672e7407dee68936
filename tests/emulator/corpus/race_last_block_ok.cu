// The last block to finish sums the others' sums, each written before a fence.
#include <cstdio>

__device__ unsigned finished;

__global__ void total(const int* in, int* partial, int* out) {
    __shared__ bool last;
    int sum = in[blockIdx.x * 32 + threadIdx.x];
    for (int half = 16; half > 0; half /= 2) sum += __shfl_down_sync(0xffffffff, sum, half);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicAdd(&finished, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        int all = 0;
        for (unsigned b = 0; b < gridDim.x; ++b) all += partial[b];
        *out = all;
    }
}

int main() {
    const int blocks = 6, n = blocks * 32;
    int host[n], *in, *partial, *out, result = 0;
    for (int i = 0; i < n; ++i) host[i] = i;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&partial, blocks * sizeof(int));
    cudaMalloc(&out, sizeof(int));
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    total<<<blocks, 32>>>(in, partial, out);
    cudaMemcpy(&result, out, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == n * (n - 1) / 2 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(partial);
    cudaFree(out);
}
