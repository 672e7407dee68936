// The number of blocks is rounded down to none, and nobody asks whether the launch worked.
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
    twice<<<n / 128, 128>>>(data, n);  // EXPECT: invalid-launch unchecked-launch-error
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 42 && host[99] == 42 ? "ok" : "wrong");
    cudaFree(data);
}
