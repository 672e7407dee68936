// A histogram in shared memory that counts with ++.
#include <cstdio>

__global__ void histogram(const unsigned char* text, int n, int* out) {
    __shared__ int bins[16];
    int t = threadIdx.x;
    if (t < 16) bins[t] = 0;
    __syncthreads();
    for (int i = t; i < n; i += blockDim.x) bins[text[i] % 16]++;  // EXPECT: race-shared
    __syncthreads();
    if (t < 16) out[t] = bins[t];
}

int main() {
    unsigned char text[256], *device_text;
    for (int i = 0; i < 256; ++i) text[i] = i / 3;
    int bins[16], *out;
    cudaMalloc(&device_text, sizeof text);
    cudaMalloc(&out, sizeof bins);
    cudaMemcpy(device_text, text, sizeof text, cudaMemcpyHostToDevice);
    histogram<<<1, 64>>>(device_text, 256, out);
    cudaMemcpy(bins, out, sizeof bins, cudaMemcpyDeviceToHost);
    int sum = 0;
    for (int count : bins) sum += count;
    std::puts(sum == 256 && bins[0] == 18 ? "ok" : "wrong");
    cudaFree(device_text);
    cudaFree(out);
}
