// The flag is read and so is the value behind it, and a barrier keeps the second read behind the first.
#include <cstdio>

__device__ int value, flag;

__global__ void hand_over(int* out) {
    if (blockIdx.x == 0) {
        value = 7;
        __threadfence();
        atomicExch(&flag, 1);
    } else {
        while (atomicAdd(&flag, 0) == 0) {}
        __syncthreads();
        *out = value;
    }
}

int main() {
    int *out, result = 0;
    cudaMalloc(&out, sizeof(int));
    hand_over<<<2, 1>>>(out);
    cudaMemcpy(&result, out, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == 7 ? "ok" : "wrong");
    cudaFree(out);
}
