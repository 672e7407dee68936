// Each branch has its own barrier, and the threads of a block take both.
#include <cstdio>

__global__ void reorder(int* data) {
    __shared__ int even[32], odd[32];
    int t = threadIdx.x;
    if (t % 2 == 0) {
        even[t / 2] = data[t];
        __syncthreads();  // EXPECT: barrier-divergence
    } else {
        odd[t / 2] = data[t];
        __syncthreads();
    }
    data[t] = t < 32 ? even[t] : odd[t - 32];
}

int main() {
    int host[64], *data;
    for (int i = 0; i < 64; ++i) host[i] = i;
    cudaMalloc(&data, sizeof host);
    cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice);
    reorder<<<1, 64>>>(data);
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[1] == 2 && host[31] == 62 && host[32] == 1 && host[63] == 63 ? "ok" : "wrong");
    cudaFree(data);
}
