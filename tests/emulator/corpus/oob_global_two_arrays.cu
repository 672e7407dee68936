// Two arrays allocated one after the other; a wrong factor takes the first across into the second.
#include <cstdio>

__global__ void interleave(int* first, int* second, int n) {
    int i = threadIdx.x;
    if (i < n) first[2 * i] = i;  // EXPECT: out-of-bounds
    if (i < n) second[i] = -i;
}

int main() {
    const int n = 64;
    int host[n], *first, *second;
    cudaMalloc(&first, n * sizeof(int));
    cudaMalloc(&second, n * sizeof(int));
    cudaMemset(first, 0, n * sizeof(int));
    interleave<<<1, n>>>(first, second, n);
    cudaMemcpy(host, second, sizeof host, cudaMemcpyDeviceToHost);
    bool right = true;
    for (int i = 0; i < n; ++i) right &= host[i] == -i;
    std::puts(right ? "ok" : "wrong");
    cudaFree(first);
    cudaFree(second);
}
