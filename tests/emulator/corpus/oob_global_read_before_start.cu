// Differences of neighbours; the first thread has no neighbour and reads it all the same.
#include <cstdio>

__global__ void differences(const int* in, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] - in[i - 1];  // EXPECT: out-of-bounds
}

int main() {
    const int n = 50;
    int host[n], *in, *out;
    for (int i = 0; i < n; ++i) host[i] = i * i;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    differences<<<1, 64>>>(in, out, n);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    bool right = host[0] == 0;
    for (int i = 1; i < n; ++i) right &= host[i] == 2 * i - 1;
    std::puts(right ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
