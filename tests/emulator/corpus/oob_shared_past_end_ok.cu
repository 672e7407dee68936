// A tile with room for the halo that the stencil reads.
#include <cstdio>

const int BLOCK = 64;

__global__ void sum_of_two(const int* in, int* out) {
    __shared__ int tile[BLOCK + 1];
    int t = threadIdx.x, i = blockIdx.x * BLOCK + t;
    tile[t] = in[i];
    if (t == BLOCK - 1) tile[BLOCK] = in[i + 1];
    __syncthreads();
    out[i] = tile[t] + tile[t + 1];
}

int main() {
    const int n = 2 * BLOCK;
    int host[n + 1], *in, *out;
    for (int i = 0; i <= n; ++i) host[i] = i;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, n * sizeof(int));
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    sum_of_two<<<2, BLOCK>>>(in, out);
    cudaMemcpy(host, out, n * sizeof(int), cudaMemcpyDeviceToHost);
    bool right = true;
    for (int i = 0; i < n; ++i) right &= host[i] == 2 * i + 1;
    std::puts(right ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
