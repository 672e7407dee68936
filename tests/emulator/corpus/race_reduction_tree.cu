// A tree reduction over a block whose steps nothing separates.
#include <cstdio>

__global__ void total(const int* in, int* out) {
    __shared__ int sums[128];
    int t = threadIdx.x;
    sums[t] = in[t];
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
        if (t < half) sums[t] += sums[t + half];  // EXPECT: race-shared
    }
    if (t == 0) *out = sums[0];
}

int main() {
    int host[128], *in, *out, result = 0;
    for (int i = 0; i < 128; ++i) host[i] = i;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof(int));
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    total<<<1, 128>>>(in, out);
    cudaMemcpy(&result, out, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == 127 * 64 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
