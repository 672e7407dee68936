// Work is put into a stream that was destroyed.
#include <cstdio>

__global__ void set(int* out) { *out = 9; }

int main() {
    int host = 0, *out;
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    cudaMalloc(&out, sizeof(int));
    set<<<1, 1, 0, stream>>>(out);
    cudaStreamDestroy(stream);
    cudaMemcpyAsync(&host, out, sizeof host, cudaMemcpyDeviceToHost, stream);  // EXPECT: invalid-stream
    std::puts(host == 9 ? "ok" : "wrong");
    cudaFree(out);
}
