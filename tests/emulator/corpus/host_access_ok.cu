// The host reads the result in managed memory.
#include <cstdio>

__global__ void answer(int* out) { *out = 42; }

int main() {
    int* out;
    cudaMallocManaged(&out, sizeof(int));
    answer<<<1, 1>>>(out);
    cudaDeviceSynchronize();
    int value = *out;
    std::puts(value == 42 ? "ok" : "wrong");
    cudaFree(out);
}
