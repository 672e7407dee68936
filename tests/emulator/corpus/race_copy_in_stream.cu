// The result is copied in one stream while another still computes it.
#include <cstdio>

__global__ void square(int* data) {
    data[threadIdx.x] = threadIdx.x * threadIdx.x;
}

int main() {
    int *host, *data;
    cudaStream_t compute, move;
    cudaStreamCreate(&compute);
    cudaStreamCreate(&move);
    cudaMallocHost(&host, 64 * sizeof(int));
    cudaMalloc(&data, 64 * sizeof(int));
    square<<<1, 64, 0, compute>>>(data);
    cudaMemcpyAsync(host, data, 64 * sizeof(int), cudaMemcpyDeviceToHost, move);  // EXPECT: race-between-launches
    cudaDeviceSynchronize();
    std::puts(host[63] == 63 * 63 ? "ok" : "wrong");
    cudaFreeHost(host);
    cudaFree(data);
    cudaStreamDestroy(compute);
    cudaStreamDestroy(move);
}
