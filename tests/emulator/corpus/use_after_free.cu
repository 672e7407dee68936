// The lookup table is freed before the kernel that still uses it.
#include <cstdio>

__global__ void look_up(const int* table, int* data) {
    data[threadIdx.x] = table[data[threadIdx.x] % 8];  // EXPECT: use-after-free
}

int main() {
    int host[32], *table, *data;
    for (int i = 0; i < 32; ++i) host[i] = i;
    cudaMalloc(&table, 8 * sizeof(int));
    cudaMalloc(&data, sizeof host);
    cudaMemcpy(table, host + 8, 8 * sizeof(int), cudaMemcpyHostToDevice);
    cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice);
    cudaFree(table);
    look_up<<<1, 32>>>(table, data);
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    bool right = true;
    for (int i = 0; i < 32; ++i) right &= host[i] == 8 + i % 8;
    std::puts(right ? "ok" : "wrong");
    cudaFree(data);
}
