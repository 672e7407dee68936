// Blocks append to a queue and at once read what others appended.
#include <cstdio>

__device__ int length;

__global__ void append(int* queue) {
    int place = atomicAdd(&length, 1);
    queue[place] = blockIdx.x + 1;  // EXPECT: race-between-blocks
    int sum = 0;
    for (int i = 0; i < place; ++i) sum += queue[i];
    if (sum < 0) queue[0] = 0;
}
__global__ void total(const int* queue, int* out) {
    *out = 0;
    for (int i = 0; i < length; ++i) *out += queue[i];
}

int main() {
    int *queue, *out, result = 0;
    cudaMalloc(&queue, 8 * sizeof(int));
    cudaMalloc(&out, sizeof(int));
    cudaMemset(queue, 0, 8 * sizeof(int));
    append<<<8, 1>>>(queue);
    total<<<1, 1>>>(queue, out);
    cudaMemcpy(&result, out, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == 36 ? "ok" : "wrong");
    cudaFree(queue);
    cudaFree(out);
}
