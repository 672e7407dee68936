// The end of a reduction with shuffles.
#include <cstdio>

__global__ void total(const int* in, int* out) {
    __shared__ volatile int sums[64];
    int t = threadIdx.x;
    sums[t] = in[t];
    __syncthreads();
    if (t < 32) {
        int sum = sums[t] + sums[t + 32];
        for (int half = 16; half > 0; half /= 2) sum += __shfl_down_sync(0xffffffff, sum, half);
        if (t == 0) *out = sum;
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
