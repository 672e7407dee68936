// An asynchronous copy from pinned memory that the host fills anew in good time.
#include <cstdio>

int main() {
    int *pinned, *device, check[16];
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    cudaMallocHost(&pinned, sizeof check);
    cudaMalloc(&device, sizeof check);
    for (int i = 0; i < 16; ++i) pinned[i] = i;
    cudaMemcpyAsync(device, pinned, sizeof check, cudaMemcpyHostToDevice, stream);
    cudaStreamSynchronize(stream);
    for (int i = 0; i < 16; ++i) pinned[i] = 0;
    cudaMemcpy(check, device, sizeof check, cudaMemcpyDeviceToHost);
    std::puts(check[15] == 15 ? "ok" : "wrong");
    cudaFreeHost(pinned);
    cudaFree(device);
    cudaStreamDestroy(stream);
}
