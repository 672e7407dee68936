// A block of 24 x 24 threads.
#include <cstdio>

__global__ void place(int* out) { out[threadIdx.y * blockDim.x + threadIdx.x] = threadIdx.y; }

int main() {
    const int side = 24;
    static int host[side * side];
    int* out;
    cudaMalloc(&out, sizeof host);
    cudaMemset(out, 0, sizeof host);
    place<<<1, dim3(side, side)>>>(out);
    if (cudaGetLastError() != cudaSuccess) std::puts("refused");
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[side * side - 1] == side - 1 ? "ok" : "wrong");
    cudaFree(out);
}
