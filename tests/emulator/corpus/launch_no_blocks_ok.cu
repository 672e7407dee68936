// The number of blocks is rounded up, and the program asks whether the launch worked.
#include <cstdio>

__global__ void twice(int* data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] *= 2;
}

int main() {
    const int n = 100;
    int host[n], *data;
    for (int& value : host) value = 21;
    cudaMalloc(&data, sizeof host);
    cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice);
    twice<<<(n + 127) / 128, 128>>>(data, n);
    if (cudaGetLastError() != cudaSuccess) std::puts("refused");
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 42 && host[99] == 42 ? "ok" : "wrong");
    cudaFree(data);
}
