// The thread that took scratch memory from the device's heap gives it back.
#include <cstdio>

__global__ void scratch(int* out) {
    __shared__ int* memory;
    if (threadIdx.x == 0) memory = static_cast<int*>(malloc(2 * sizeof(int)));
    __syncthreads();
    memory[threadIdx.x] = threadIdx.x + 1;
    __syncthreads();
    out[threadIdx.x] = memory[1 - threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) free(memory);
}

int main() {
    int host[2], *out;
    cudaMalloc(&out, sizeof host);
    scratch<<<1, 2>>>(out);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 2 && host[1] == 1 ? "ok" : "wrong");
    cudaFree(out);
}
