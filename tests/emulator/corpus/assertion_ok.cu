// An assertion that the data keeps.
#include <cassert>
#include <cstdio>

__global__ void root(const float* in, float* out) {
    float value = in[threadIdx.x];
    assert(value >= 0);
    out[threadIdx.x] = sqrtf(value);
}

int main() {
    float host[32], *in, *out;
    for (int i = 0; i < 32; ++i) host[i] = i * i;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    cudaMemset(out, 0, sizeof host);
    root<<<1, 32>>>(in, out);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[31] == 31 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
