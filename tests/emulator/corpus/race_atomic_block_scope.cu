// Blocks find the largest element with an atomic of block scope.
#include <cstdio>

__global__ void largest(const int* in, int* out) {
    __shared__ int best;
    if (threadIdx.x == 0) best = 0;
    __syncthreads();
    atomicMax_block(&best, in[blockIdx.x * blockDim.x + threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) atomicMax_block(out, best);  // EXPECT: race-between-blocks
}

int main() {
    int host[128], *in, *out, result = 0;
    for (int i = 0; i < 128; ++i) host[i] = i * 37 % 101;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof(int));
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    cudaMemset(out, 0, sizeof(int));
    largest<<<4, 32>>>(in, out);
    cudaMemcpy(&result, out, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == 100 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
