// The result is copied back from memory that was freed a line too early.
#include <cstdio>

__global__ void square(int* data) { data[threadIdx.x] *= data[threadIdx.x]; }

int main() {
    int host[16], *data;
    for (int i = 0; i < 16; ++i) host[i] = i;
    cudaMalloc(&data, sizeof host);
    cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice);
    square<<<1, 16>>>(data);
    cudaFree(data);
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);  // EXPECT: use-after-free
    std::puts(host[15] == 225 ? "ok" : "wrong");
}
