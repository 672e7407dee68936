// Blocks set up a table once, behind a flag that they first look at with a plain read.
#include <cstdio>

__device__ int lock, ready, table[4];

__global__ void first_come(int* out) {
    if (ready == 0) {
        while (atomicCAS(&lock, 0, 1) != 0) {}
        __threadfence();
        if (ready == 0) {
            for (int i = 0; i < 4; ++i) table[i] = i + 10;
            __threadfence();
            ready = 1;  // EXPECT: race-between-blocks
        }
        __threadfence();
        atomicExch(&lock, 0);
    }
    out[blockIdx.x] = blockIdx.x;
}

int main() {
    int host[4], *out;
    cudaMalloc(&out, sizeof host);
    first_come<<<4, 1>>>(out);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 10 && host[3] == 13 ? "ok" : "wrong");
    cudaFree(out);
}
