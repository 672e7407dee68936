// The fence before the flag reaches the whole device.
#include <cstdio>

__global__ void hand_over(int* values, volatile int* flag, int* out) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) {
        values[t] = t * t;
        __threadfence();
        __syncthreads();
        if (t == 0) *flag = 1;
    } else {
        if (t == 0) {
            while (*flag == 0) {}
            __threadfence();
        }
        __syncthreads();
        out[t] = values[t];
    }
}

int main() {
    int host[64], *values, *flag, *out;
    cudaMalloc(&values, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMalloc(&flag, sizeof(int));
    cudaMemset(flag, 0, sizeof(int));
    hand_over<<<2, 64>>>(values, flag, out);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[63] == 63 * 63 ? "ok" : "wrong");
    cudaFree(values);
    cudaFree(flag);
    cudaFree(out);
}
