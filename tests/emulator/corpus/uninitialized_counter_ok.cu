// A counter that was set to zero.
#include <cstdio>

__global__ void count(const int* values, int* even) {
    if (values[threadIdx.x] % 2 == 0) atomicAdd(even, 1);
}

int main() {
    int host[32], *values, *even;
    for (int i = 0; i < 32; ++i) host[i] = i;
    cudaMalloc(&values, sizeof host);
    cudaMalloc(&even, sizeof(int));
    cudaMemset(even, 0, sizeof(int));
    cudaMemcpy(values, host, sizeof host, cudaMemcpyHostToDevice);
    count<<<1, 32>>>(values, even);
    cudaMemcpy(host, even, sizeof(int), cudaMemcpyDeviceToHost);
    std::puts(host[0] == 16 ? "ok" : "wrong");
    cudaFree(values);
    cudaFree(even);
}
