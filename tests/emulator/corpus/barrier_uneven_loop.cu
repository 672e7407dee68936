// The first half of a block goes round a loop with a barrier once more than the second half.
#include <cstdio>

__global__ void rounds(const int* in, int* out, int n) {
    __shared__ int sum;
    int t = threadIdx.x;
    if (t == 0) sum = 0;
    __syncthreads();
    for (int i = t; i < n; i += blockDim.x) {
        atomicAdd(&sum, in[i]);
        __syncthreads();  // EXPECT: barrier-divergence
    }
    if (t == 0) *out = 0;
    __syncthreads();
    if (t == 0) *out += sum;
}

int main() {
    const int n = 96;
    int host[n], *in, *out, result = 0;
    for (int& value : host) value = 1;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof(int));
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    rounds<<<1, 64>>>(in, out, n);
    cudaMemcpy(&result, out, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == n ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
