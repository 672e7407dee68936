// Two tables side by side; the second's first element is not the first's fifth.
#include <cstdio>

__device__ int squares[4] = {0, 1, 4, 9}, cubes[4] = {0, 1, 8, 27};

__device__ int entry(const int* table, int i) {
    return table[i];  // EXPECT: out-of-bounds
}
__global__ void look_up(int* out) {
    out[threadIdx.x] = entry(squares, threadIdx.x) + entry(cubes, threadIdx.x % 4);
}

int main() {
    int* out;
    cudaMalloc(&out, 5 * sizeof(int));
    look_up<<<1, 5>>>(out);
    cudaDeviceSynchronize();
    cudaFree(out);
}
