// Four sums in a local array, of which one is never set to zero.
#include <cstdio>

__global__ void sums_by_class(const int* values, int* out, int n, int classes) {
    int sums[4];
    for (int c = 1; c < classes; ++c) sums[c] = 0;
    for (int i = 0; i < n; ++i) {
        sums[values[i] % 4] += values[i];  // EXPECT: uninitialized-read
    }
    out[threadIdx.x] = sums[threadIdx.x % 4];
}

int main() {
    int host[20], *values, *out;
    for (int i = 0; i < 20; ++i) host[i] = i;
    cudaMalloc(&values, sizeof host);
    cudaMalloc(&out, 4 * sizeof(int));
    cudaMemcpy(values, host, sizeof host, cudaMemcpyHostToDevice);
    sums_by_class<<<1, 4>>>(values, out, 20, 4);
    cudaMemcpy(host, out, 4 * sizeof(int), cudaMemcpyDeviceToHost);
    std::puts(host[0] == 40 && host[3] == 55 ? "ok" : "wrong");
    cudaFree(values);
    cudaFree(out);
}
