// Each copy names its own direction.
#include <cstdio>

__global__ void negate(int* data) { data[threadIdx.x] = -data[threadIdx.x]; }

int main() {
    int host[32], *data;
    for (int i = 0; i < 32; ++i) host[i] = i;
    cudaMalloc(&data, sizeof host);
    cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice);
    negate<<<1, 32>>>(data);
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[31] == -31 ? "ok" : "wrong");
    cudaFree(data);
}
