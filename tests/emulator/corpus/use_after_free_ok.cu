// The lookup table is freed after the kernel that uses it.
#include <cstdio>

__global__ void look_up(const int* table, int* data) {
    data[threadIdx.x] = table[data[threadIdx.x] % 8];
}

int main() {
    int host[32], *table, *data;
    for (int i = 0; i < 32; ++i) host[i] = i;
    cudaMalloc(&table, 8 * sizeof(int));
    cudaMalloc(&data, sizeof host);
    cudaMemcpy(table, host + 8, 8 * sizeof(int), cudaMemcpyHostToDevice);
    cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice);
    look_up<<<1, 32>>>(table, data);
    cudaFree(table);
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    bool right = true;
    for (int i = 0; i < 32; ++i) right &= host[i] == 8 + i % 8;
    std::puts(right ? "ok" : "wrong");
    cudaFree(data);
}
