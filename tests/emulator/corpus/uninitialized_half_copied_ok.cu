// The copy to the device counts bytes.
#include <cstdio>

__global__ void scale(const float* in, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * in[i];
}

int main() {
    const int n = 80;
    float host[n], *in, *out;
    for (int i = 0; i < n; ++i) host[i] = i;
    cudaMalloc(&in, n * sizeof(float));
    cudaMalloc(&out, n * sizeof(float));
    cudaMemcpy(in, host, n * sizeof(float), cudaMemcpyHostToDevice);
    scale<<<3, 32>>>(in, out, n);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[79] == 158 && host[1] == 2 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
