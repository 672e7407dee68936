// Blocks write their part of the output and no more.
#include <cstdio>

__global__ void spread(const int* in, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i];
}

int main() {
    const int n = 128;
    int host[n], *in, *out;
    for (int i = 0; i < n; ++i) host[i] = i;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    spread<<<n / 32, 32>>>(in, out, n);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[31] == 31 && host[32] == 32 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
