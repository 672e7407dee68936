// The host reads a sum in managed memory before it is there.
#include <cstdio>

__global__ void count(int* sum) {
    atomicAdd(sum, 1);
}

int main() {
    int* sum;
    cudaMallocManaged(&sum, sizeof(int));
    *sum = 0;
    count<<<2, 64>>>(sum);
    std::puts(*sum == 128 ? "ok" : "wrong");  // EXPECT: race-with-host
    cudaFree(sum);
}
