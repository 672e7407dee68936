// A block without work still comes to the barrier of the grid.
#include <cooperative_groups.h>
#include <cstdio>

__global__ void two_phases(int* data, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = i;
    cooperative_groups::this_grid().sync();
    if (i < n) out[i] = data[n - 1 - i];
}

int main() {
    int n = 64, host[64], *data, *out;
    cudaMalloc(&data, sizeof host);
    cudaMalloc(&out, sizeof host);
    void* arguments[] = {&data, &out, &n};
    cudaLaunchCooperativeKernel((void*)two_phases, dim3(3), dim3(32), arguments, 0, 0);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 63 && host[63] == 0 ? "ok" : "wrong");
    cudaFree(data);
    cudaFree(out);
}
