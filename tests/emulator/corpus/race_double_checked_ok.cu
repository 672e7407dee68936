// Blocks set up a table once, behind a flag that they first look at with an atomic read.
#include <cstdio>

__device__ int lock, ready, table[4];

__global__ void first_come(int* out) {
    if (atomicAdd(&ready, 0) == 0) {
        while (atomicCAS(&lock, 0, 1) != 0) {}
        __threadfence();
        if (atomicAdd(&ready, 0) == 0) {
            for (int i = 0; i < 4; ++i) table[i] = i + 10;
            __threadfence();
            atomicExch(&ready, 1);
        }
        __threadfence();
        atomicExch(&lock, 0);
    } else {
        __threadfence();
    }
    out[blockIdx.x] = table[blockIdx.x];
}

int main() {
    int host[4], *out;
    cudaMalloc(&out, sizeof host);
    first_come<<<4, 1>>>(out);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 10 && host[3] == 13 ? "ok" : "wrong");
    cudaFree(out);
}
