// The classes of a histogram in a __device__ array; the largest value falls into the last one.
#include <cstdio>

__device__ int histogram[10];

__global__ void count(const int* values, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    int slot = values[i] / 10;
    if (slot > 9) slot = 9;
    atomicAdd(&histogram[slot], 1);
}

int main() {
    int host[101], *values, counts[10];
    for (int i = 0; i < 101; ++i) host[i] = i;
    cudaMalloc(&values, sizeof host);
    cudaMemcpy(values, host, sizeof host, cudaMemcpyHostToDevice);
    count<<<1, 128>>>(values, 101);
    cudaMemcpyFromSymbol(counts, histogram, sizeof counts);
    std::puts(counts[0] == 10 && counts[9] == 11 ? "ok" : "wrong");
    cudaFree(values);
}
