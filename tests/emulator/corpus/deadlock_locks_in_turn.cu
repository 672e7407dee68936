// Two blocks take two locks in opposite order, each when the other has its first.
#include <cstdio>

__device__ int locks[2], holders;

__device__ void take(int* lock) {
    while (atomicCAS(lock, 0, 1) != 0) {}  // EXPECT: livelock
    __threadfence();
}
__device__ void give(int* lock) {
    __threadfence();
    atomicExch(lock, 0);
}
__global__ void both(int* sum) {
    int first = blockIdx.x;
    take(&locks[first]);
    atomicAdd(&holders, 1);
    while (atomicAdd(&holders, 0) < 2) {}
    take(&locks[1 - first]);
    *sum += 1;
    give(&locks[1 - first]);
    give(&locks[first]);
}

int main() {
    int *sum, result = 0;
    cudaMalloc(&sum, sizeof(int));
    cudaMemset(sum, 0, sizeof(int));
    both<<<2, 1>>>(sum);
    cudaMemcpy(&result, sum, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == 2 ? "ok" : "wrong");
    cudaFree(sum);
}
