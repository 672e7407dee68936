// After the barrier of the grid a block hands a value on, without the fence that it needs again.
#include <cooperative_groups.h>
#include <cstdio>

__device__ int values[2], flags[2];

__global__ void hand_over_twice(int* out) {
    for (int phase = 0; phase < 2; ++phase) {
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            if (phase == 0) {
                values[0] = 10;
                __threadfence();
                atomicExch(&flags[0], 1);
            } else {
                values[1] = 20;  // EXPECT: race-between-blocks
                atomicExch(&flags[1], 1);
            }
        }
        if (blockIdx.x == 1 && threadIdx.x == 0) {
            while (atomicAdd(&flags[phase], 0) == 0) {}
            __threadfence();
            out[phase] = values[phase];
        }
        cooperative_groups::this_grid().sync();
    }
}

int main() {
    int host[2], *out;
    cudaMalloc(&out, sizeof host);
    void* arguments[] = {&out};
    cudaLaunchCooperativeKernel((void*)hand_over_twice, dim3(2), dim3(64), arguments, 0, 0);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 10 && host[1] == 20 ? "ok" : "wrong");
    cudaFree(out);
}
