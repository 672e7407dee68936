// The first thread of each block adds its block's sum to the total with +=.
#include <cstdio>

__global__ void total(const float* in, float* out) {
    float sum = in[blockIdx.x * 32 + threadIdx.x];
    for (int half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(0xffffffff, sum, half);
    if (threadIdx.x == 0) *out += sum;  // EXPECT: race-between-blocks
}

int main() {
    float host[128], *in, *out, result = 0;
    for (float& value : host) value = 0.25f;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof(float));
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    cudaMemset(out, 0, sizeof(float));
    total<<<4, 32>>>(in, out);
    cudaMemcpy(&result, out, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == 32 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
