// A prefix sum in one buffer: a thread reads its neighbour's sum before or after it grew.
#include <cstdio>

__global__ void prefix(int* data) {
    __shared__ int sums[2][64];
    int t = threadIdx.x, from = 0;
    sums[0][t] = data[t];
    __syncthreads();
    for (int step = 1; step < 64; step *= 2) {
        if (t >= step) sums[from][t] += sums[from][t - step];  // EXPECT: race-shared
        __syncthreads();
    }
    data[t] = sums[from][t];
}

int main() {
    int host[64], *data;
    for (int& value : host) value = 2;
    cudaMalloc(&data, sizeof host);
    cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice);
    prefix<<<1, 64>>>(data);
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    bool right = true;
    for (int i = 0; i < 64; ++i) right &= host[i] == 2 * (i + 1);
    std::puts(right ? "ok" : "wrong");
    cudaFree(data);
}
