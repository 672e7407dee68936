// The result is copied back before its memory is freed.
#include <cstdio>

__global__ void square(int* data) { data[threadIdx.x] *= data[threadIdx.x]; }

int main() {
    int host[16], *data;
    for (int i = 0; i < 16; ++i) host[i] = i;
    cudaMalloc(&data, sizeof host);
    cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice);
    square<<<1, 16>>>(data);
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    cudaFree(data);
    std::puts(host[15] == 225 ? "ok" : "wrong");
}
