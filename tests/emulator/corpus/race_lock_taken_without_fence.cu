// A spin lock guards a sum; a fence comes before its release, none after it is taken.
#include <cstdio>

__device__ int lock;

__global__ void add(double* sum) {
    while (atomicCAS(&lock, 0, 1) != 0) {}
    *sum += blockIdx.x;  // EXPECT: race-between-blocks
    __threadfence();
    atomicExch(&lock, 0);
}

int main() {
    double *sum, result = 0;
    cudaMalloc(&sum, sizeof(double));
    cudaMemset(sum, 0, sizeof(double));
    add<<<16, 1>>>(sum);
    cudaMemcpy(&result, sum, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == 120 ? "ok" : "wrong");
    cudaFree(sum);
}
