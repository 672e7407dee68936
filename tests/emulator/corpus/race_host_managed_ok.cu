// The host reads a sum in managed memory when it is there.
#include <cstdio>

__global__ void count(int* sum) {
    atomicAdd(sum, 1);
}

int main() {
    int* sum;
    cudaMallocManaged(&sum, sizeof(int));
    *sum = 0;
    count<<<2, 64>>>(sum);
    cudaDeviceSynchronize();
    std::puts(*sum == 128 ? "ok" : "wrong");
    cudaFree(sum);
}
