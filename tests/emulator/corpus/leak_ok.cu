// A buffer allocated anew in each round and freed in each round.
#include <cstdio>

__global__ void add(int* total, const int* part) { *total += part[0] + part[1]; }

int main() {
    int result = 0, *total;
    cudaMalloc(&total, sizeof(int));
    cudaMemset(total, 0, sizeof(int));
    int* part = nullptr;
    for (int round = 1; round <= 3; ++round) {
        int values[2] = {round, round};
        cudaMalloc(&part, sizeof values);
        cudaMemcpy(part, values, sizeof values, cudaMemcpyHostToDevice);
        add<<<1, 1>>>(total, part);
        cudaFree(part);
    }
    cudaMemcpy(&result, total, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == 12 ? "ok" : "wrong");
    cudaFree(total);
}
