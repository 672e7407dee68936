// A three-point stencil whose last thread reads one element too far to the right.
#include <cstdio>

__global__ void smooth(const float* in, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float left = i > 0 ? in[i - 1] : in[0];
    float right = in[i + 1];  // EXPECT: out-of-bounds
    out[i] = (left + in[i] + right) / 3;
}

int main() {
    const int n = 96;
    float host[n], *in, *out;
    for (int i = 0; i < n; ++i) host[i] = 3;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    smooth<<<2, 64>>>(in, out, n);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    bool right = true;
    for (int i = 0; i < n; ++i) right &= host[i] == 3;
    std::puts(right ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
