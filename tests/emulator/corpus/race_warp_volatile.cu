// The end of a reduction as it was written before Volta: volatile, and no __syncwarp.
#include <cstdio>

__global__ void total(const int* in, int* out) {
    __shared__ volatile int sums[64];
    int t = threadIdx.x;
    sums[t] = in[t];
    __syncthreads();
    if (t < 32) {
        for (int half = 32; half > 0; half /= 2) {
            sums[t] = sums[t] + sums[t + half];  // EXPECT: race-shared
        }
        if (t == 0) *out = sums[0];
    }
}

int main() {
    int host[64], *in, *out, result = 0;
    for (int i = 0; i < 64; ++i) host[i] = i;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof(int));
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    total<<<1, 64>>>(in, out);
    cudaMemcpy(&result, out, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == 63 * 32 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
