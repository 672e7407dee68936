// The lock is given back on every path.
#include <cstdio>

__device__ int lock;

__global__ void guarded(int* sum, int skipped) {
    while (atomicCAS(&lock, 0, 1) != 0) {}
    __threadfence();
    if (*sum != skipped) *sum += 1;
    __threadfence();
    atomicExch(&lock, 0);
}

int main() {
    int *sum, result = 0;
    cudaMalloc(&sum, sizeof(int));
    cudaMemset(sum, 0, sizeof(int));
    guarded<<<4, 1>>>(sum, 2);
    cudaMemcpy(&result, sum, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == 2 ? "ok" : "wrong");
    cudaFree(sum);
}
