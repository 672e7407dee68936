// The kernel is given the device's array.
#include <cstdio>

__global__ void increment(int* data) {
    data[threadIdx.x] += 1;
}

int main() {
    int h_data[32] = {}, *d_data;
    cudaMalloc(&d_data, sizeof h_data);
    cudaMemcpy(d_data, h_data, sizeof h_data, cudaMemcpyHostToDevice);
    increment<<<1, 32>>>(d_data);
    cudaMemcpy(h_data, d_data, sizeof h_data, cudaMemcpyDeviceToHost);
    std::puts(h_data[0] == 1 && h_data[31] == 1 ? "ok" : "wrong");
    cudaFree(d_data);
}
