// One stream writes what another reads, and the event that would tell the second is waited for by none.
#include <cstdio>

__global__ void fill(int* data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = 2 * i;  // EXPECT: race-between-launches
}
__global__ void copy(const int* data, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = data[n - 1 - i];
}

int main() {
    const int n = 200;
    int host[n], *data, *out;
    cudaStream_t first, second;
    cudaEvent_t filled;
    cudaStreamCreate(&first);
    cudaStreamCreate(&second);
    cudaEventCreate(&filled);
    cudaMalloc(&data, sizeof host);
    cudaMalloc(&out, sizeof host);
    fill<<<2, 128, 0, first>>>(data, n);
    cudaEventRecord(filled, first);
    copy<<<2, 128, 0, second>>>(data, out, n);
    cudaStreamSynchronize(second);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 2 * n - 2 && host[n - 1] == 0 ? "ok" : "wrong");
    cudaFree(data);
    cudaFree(out);
    cudaEventDestroy(filled);
    cudaStreamDestroy(first);
    cudaStreamDestroy(second);
}
