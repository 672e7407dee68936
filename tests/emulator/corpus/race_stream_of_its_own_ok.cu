// A stream that waits for the default one reads what the default one writes.
#include <cstdio>

__global__ void double_all(int* data) {
    data[threadIdx.x] *= 2;
}
__global__ void add_one(int* data) {
    data[threadIdx.x] += 1;
}

int main() {
    int host[64] = {}, *data;
    cudaStream_t own;
    cudaStreamCreate(&own);
    cudaMalloc(&data, sizeof host);
    cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice);
    double_all<<<1, 64>>>(data);
    add_one<<<1, 64, 0, own>>>(data);
    cudaDeviceSynchronize();
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 1 ? "ok" : "wrong");
    cudaFree(data);
    cudaStreamDestroy(own);
}
