// A tiled matrix product: matmul N ROUNDS prints the fastest launch in seconds, the least
// processor time of one, and a sum over the result.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#define TILE 16

__global__ void matmul(const float* a, const float* b, float* c, int n) {
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int column = blockIdx.x * TILE + x, row = blockIdx.y * TILE + y;
    float sum = 0;
    for (int first = 0; first < n; first += TILE) {
        left[y][x] = row < n && first + x < n ? a[row * n + first + x] : 0;
        right[y][x] = first + y < n && column < n ? b[(first + y) * n + column] : 0;
        __syncthreads();
        for (int p = 0; p < TILE; ++p) sum += left[y][p] * right[p][x];
        __syncthreads();
    }
    if (row < n && column < n) c[row * n + column] = sum;
}

int main(int argc, char** argv) {
    const int n = std::atoi(argv[1]), rounds = std::atoi(argv[2]), blocks = (n + TILE - 1) / TILE;
    std::vector<float> host(n * n);
    for (int i = 0; i < n * n; ++i) host[i] = i % 7 - 3;
    float *a, *b, *c;
    const size_t bytes = host.size() * sizeof(float);
    cudaMalloc(&a, bytes);
    cudaMalloc(&b, bytes);
    cudaMalloc(&c, bytes);
    cudaMemcpy(a, host.data(), bytes, cudaMemcpyHostToDevice);
    cudaMemcpy(b, host.data(), bytes, cudaMemcpyHostToDevice);
    double best = 1e9, best_processor = 1e9;
    for (int round = 0; round < rounds; ++round) {
        const auto began = std::chrono::steady_clock::now();
        const std::clock_t processor = std::clock();
        matmul<<<dim3(blocks, blocks), dim3(TILE, TILE)>>>(a, b, c, n);
        cudaDeviceSynchronize();
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
        best_processor = std::min(best_processor, static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC);
    }
    cudaMemcpy(host.data(), c, bytes, cudaMemcpyDeviceToHost);
    double sum = 0;
    for (int i = 0; i < n * n; ++i) sum += host[i] * (i % 11);
    std::printf("%.6f %.6f %.0f\n", best, best_processor, sum);
    cudaFree(a);
    cudaFree(b);
    cudaFree(c);
}
