// A prefix sum that forgets that the first threads have nobody that far to the left.
#include <cstdio>

__global__ void prefix(int* data) {
    __shared__ int sums[32];
    int t = threadIdx.x;
    int* mine = sums + t;
    *mine = data[t];
    __syncthreads();
    for (int step = 1; step < 32; step *= 2) {
        int left = mine[-step];  // EXPECT: out-of-bounds
        __syncthreads();
        *mine += left;
        __syncthreads();
    }
    data[t] = *mine;
}

int main() {
    int host[32], *data;
    for (int& value : host) value = 1;
    cudaMalloc(&data, sizeof host);
    cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice);
    prefix<<<1, 32>>>(data);
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    bool right = true;
    for (int i = 0; i < 32; ++i) right &= host[i] == i + 1;
    std::puts(right ? "ok" : "wrong");
    cudaFree(data);
}
