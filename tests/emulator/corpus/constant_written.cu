// A kernel writes to its constant memory.
#include <cstdio>

__constant__ int factors[32];

__global__ void multiply(int* data) {
    int t = threadIdx.x;
    const_cast<int&>(factors[t]) *= data[t];  // EXPECT: write-to-constant
}

int main() {
    int host[32], *data;
    for (int i = 0; i < 32; ++i) host[i] = i;
    cudaMalloc(&data, sizeof host);
    cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice);
    cudaMemcpyToSymbol(factors, host, sizeof host);
    multiply<<<1, 32>>>(data);
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[31] == 961 ? "ok" : "wrong");
    cudaFree(data);
}
