// One step of a stencil in place: a block reads what the block beside it overwrites.
#include <cstdio>

__global__ void step(const int* in, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int value = in[i] + (i % 32 == 0 && i > 0 ? in[i - 1] : 0);
    out[i] = value;  // EXPECT: race-between-blocks
}

int main() {
    const int n = 96;
    int host[n], *in, *out;
    for (int& value : host) value = 1;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    step<<<n / 32, 32>>>(in, in, n);
    cudaMemcpy(host, in, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 1 && host[32] == 2 && host[64] == 2 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
