// A block smooths its row in place, reading neighbours that others overwrite.
#include <cstdio>

__global__ void smooth(int* row, int n) {
    int t = threadIdx.x;
    if (t > 0) row[t] = row[t] + row[t - 1];  // EXPECT: race-global
}

int main() {
    int host[64], *row;
    for (int& value : host) value = 1;
    cudaMalloc(&row, sizeof host);
    cudaMemcpy(row, host, sizeof host, cudaMemcpyHostToDevice);
    smooth<<<1, 64>>>(row, 64);
    cudaMemcpy(host, row, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 1 && host[1] == 2 && host[63] == 2 ? "ok" : "wrong");
    cudaFree(row);
}
