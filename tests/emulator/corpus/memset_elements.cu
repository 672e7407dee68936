// The memset's size is multiplied by the size of a wider type than the array's.
#include <cstdio>

int main() {
    const int n = 24;
    float host[n], *data;
    cudaMalloc(&data, n * sizeof(float));
    cudaMemset(data, 0, n * sizeof(double));  // EXPECT: out-of-bounds
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 0 && host[n - 1] == 0 ? "ok" : "wrong");
    cudaFree(data);
}
