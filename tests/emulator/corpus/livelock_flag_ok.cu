// A block waits for the flag that the other block sets.
#include <cstdio>

__device__ int flags[2];

__global__ void wait_for_it(int* out) {
    if (blockIdx.x == 0) {
        atomicExch(&flags[1], 1);
    } else {
        while (atomicAdd(&flags[1], 0) == 0) {}
        *out = 3;
    }
}

int main() {
    int *out, result = 0;
    cudaMalloc(&out, sizeof(int));
    wait_for_it<<<2, 1>>>(out);
    cudaMemcpy(&result, out, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == 3 ? "ok" : "wrong");
    cudaFree(out);
}
