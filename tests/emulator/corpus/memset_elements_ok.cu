// The memset's size is that of the array.
#include <cstdio>

int main() {
    const int n = 24;
    float host[n], *data;
    cudaMalloc(&data, n * sizeof(float));
    cudaMemset(data, 0, n * sizeof(float));
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 0 && host[n - 1] == 0 ? "ok" : "wrong");
    cudaFree(data);
}
