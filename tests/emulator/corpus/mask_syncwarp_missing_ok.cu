// Even lanes wait for even lanes.
#include <cstdio>

__global__ void exchange(int* data) {
    __shared__ int buffer[32];
    int t = threadIdx.x;
    if (t % 2 == 0) {
        buffer[t] = data[t];
        __syncwarp(0x55555555);
        data[t] = buffer[(t + 2) % 32];
    } else {
        data[t] = -data[t];
    }
}

int main() {
    int host[32], *data;
    for (int i = 0; i < 32; ++i) host[i] = i;
    cudaMalloc(&data, sizeof host);
    cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice);
    exchange<<<1, 32>>>(data);
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 2 && host[30] == 0 && host[31] == -31 ? "ok" : "wrong");
    cudaFree(data);
}
