// One row of the grid for each of 70,000 rows of the matrix.
#include <cstdio>

__global__ void rows(int* out, int n) {
    int row = blockIdx.x + blockIdx.y;
    if (row == n - 1) *out = row;
}

int main() {
    int *out, result = 0;
    cudaMalloc(&out, sizeof(int));
    cudaMemset(out, 0, sizeof(int));
    rows<<<dim3(1, 70000), 1>>>(out, 70000);  // EXPECT: invalid-launch
    if (cudaPeekAtLastError() != cudaSuccess) std::puts("refused");
    cudaMemcpy(&result, out, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == 69999 ? "ok" : "wrong");
    cudaFree(out);
}
