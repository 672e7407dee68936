// Two phases over the whole grid, kept apart by a barrier of the grid.
#include <cooperative_groups.h>
#include <cstdio>

__global__ void shift(int* data, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    data[i] = i;
    cooperative_groups::this_grid().sync();
    out[i] = data[(i + blockDim.x) % n];
}

int main() {
    int n = 128, host[128], *data, *out;
    cudaMalloc(&data, sizeof host);
    cudaMalloc(&out, sizeof host);
    void* arguments[] = {&data, &out, &n};
    cudaLaunchCooperativeKernel((void*)shift, dim3(4), dim3(32), arguments, 0, 0);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 32 && host[127] == 31 ? "ok" : "wrong");
    cudaFree(data);
    cudaFree(out);
}
