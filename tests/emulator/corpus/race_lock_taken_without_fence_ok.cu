// A spin lock guards a sum; the compiler's atomics carry the order that a lock needs.
#include <cstdio>

__device__ unsigned lock;

__global__ void add(double* sum) {
    while (__atomic_exchange_n(&lock, 1u, __ATOMIC_ACQUIRE) != 0) {}
    *sum += blockIdx.x;
    __atomic_store_n(&lock, 0u, __ATOMIC_RELEASE);
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
