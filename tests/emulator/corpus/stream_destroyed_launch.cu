// A kernel is launched in a stream that was destroyed.
#include <cstdio>

__global__ void add(int* out, int value) { *out += value; }

int main() {
    int host = 0, *out;
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaMalloc(&out, sizeof(int));
    cudaMemset(out, 0, sizeof(int));
    cudaDeviceSynchronize();
    add<<<1, 1, 0, stream>>>(out, 4);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    add<<<1, 1, 0, stream>>>(out, 5);  // EXPECT: invalid-stream
    if (cudaGetLastError() != cudaSuccess) std::puts("refused");
    cudaMemcpy(&host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host == 9 ? "ok" : "wrong");
    cudaFree(out);
}
