// Threads beyond the length skip the work and still come to the barrier.
#include <cstdio>

__global__ void reverse_blocks(const int* in, int* out, int n) {
    __shared__ int tile[32];
    int t = threadIdx.x, i = blockIdx.x * 32 + t;
    if (i < n) tile[t] = in[i];
    __syncthreads();
    int last = min(32, n - blockIdx.x * 32) - 1;
    if (i < n) out[i] = tile[last - t];
}

int main() {
    const int n = 50;
    int host[n], *in, *out;
    for (int i = 0; i < n; ++i) host[i] = i;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    reverse_blocks<<<2, 32>>>(in, out, n);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 31 && host[31] == 0 && host[32] == 49 && host[49] == 32 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
