// The host reads the result through the device's pointer.
#include <cstdio>

__global__ void answer(int* out) { *out = 42; }

int main() {
    int* out;
    cudaMalloc(&out, sizeof(int));
    answer<<<1, 1>>>(out);
    cudaDeviceSynchronize();
    int value = *out;  // EXPECT: host-access
    std::puts(value == 42 ? "ok" : "wrong");
    cudaFree(out);
}
