// The launch asks for as many bytes of dynamic shared memory as there are elements.
#include <cstdio>

extern __shared__ float buffer[];

__global__ void reverse(float* data, int n) {
    int t = threadIdx.x;
    buffer[t] = data[t];  // EXPECT: out-of-bounds
    __syncthreads();
    if (t < n / 4) data[t] = buffer[n / 4 - 1 - t];
}

int main() {
    const int n = 64;
    float host[n], *data;
    for (int i = 0; i < n; ++i) host[i] = i;
    cudaMalloc(&data, sizeof host);
    cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice);
    reverse<<<1, n, n>>>(data, n);
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    bool right = true;
    for (int i = 0; i < n; ++i) right &= host[i] == (i < n / 4 ? n / 4 - 1 - i : i);
    std::puts(right ? "ok" : "wrong");
    cudaFree(data);
}
