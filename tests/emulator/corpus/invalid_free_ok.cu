// A pointer walks along its buffer; the buffer is freed at its start.
#include <cstdio>

__global__ void set(int* data, int value) { data[threadIdx.x] = value; }

int main() {
    int host[64], *data;
    cudaMalloc(&data, sizeof host);
    int* part = data;
    for (int i = 0; i < 2; ++i) {
        set<<<1, 32>>>(part, i);
        part += 32;
    }
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 0 && host[63] == 1 ? "ok" : "wrong");
    cudaFree(data);
}
