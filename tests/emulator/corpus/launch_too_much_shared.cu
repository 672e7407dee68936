// 100 KiB of dynamic shared memory, without asking for more than the usual limit.
#include <cstdio>

extern __shared__ double memory[];

__global__ void use(int n, double* out) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) memory[i] = i;
    __syncthreads();
    if (threadIdx.x == 0) *out = memory[n - 1];
}

int main() {
    const int n = 12800;
    double *out, result = 0;
    cudaMalloc(&out, sizeof(double));
    cudaMemset(out, 0, sizeof(double));
    use<<<1, 64, n * sizeof(double)>>>(n, out);  // EXPECT: invalid-launch
    if (cudaGetLastError() != cudaSuccess) std::puts("refused");
    cudaMemcpy(&result, out, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == n - 1 ? "ok" : "wrong");
    cudaFree(out);
}
