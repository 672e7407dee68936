// The guard of a fill allows one element too many.
#include <cstdio>

__global__ void fill(double* data, int last, double value) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= last) data[i] = value;  // EXPECT: out-of-bounds
}

int main() {
    const int n = 100;
    double host[n], *data;
    cudaMalloc(&data, n * sizeof(double));
    fill<<<4, 32>>>(data, n, 2.5);
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    bool right = true;
    for (double value : host) right &= value == 2.5;
    std::puts(right ? "ok" : "wrong");
    cudaFree(data);
}
