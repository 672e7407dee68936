// A filter with as many taps as there are coefficients in constant memory.
#include <cstdio>

__constant__ float coefficients[5] = {1, 2, 3, 2, 1};

__global__ void filter(const float* in, float* out, int taps) {
    float sum = 0;
    const float* c = coefficients;
    for (int k = 0; k < taps; ++k) {
        sum += c[k] * in[threadIdx.x + k];
    }
    out[threadIdx.x] = sum;
}

int main() {
    float host[32], *in, *out;
    for (float& value : host) value = 1;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, 16 * sizeof(float));
    cudaMemset(out, 0, 16 * sizeof(float));
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    filter<<<1, 16>>>(in, out, 5);
    cudaMemcpy(host, out, 16 * sizeof(float), cudaMemcpyDeviceToHost);
    std::puts(host[0] == 9 && host[15] == 9 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
