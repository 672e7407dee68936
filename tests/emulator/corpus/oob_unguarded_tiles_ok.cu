// Tiles of 16 over a 20 x 20 matrix, each load guarded.
#include <cstdio>

const int TILE = 16;

__global__ void transpose(const float* in, float* out, int n) {
    __shared__ float tile[TILE][TILE + 1];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    if (x < n && y < n) tile[threadIdx.y][threadIdx.x] = in[y * n + x];
    __syncthreads();
    x = blockIdx.y * TILE + threadIdx.x;
    y = blockIdx.x * TILE + threadIdx.y;
    if (x < n && y < n) out[y * n + x] = tile[threadIdx.x][threadIdx.y];
}

int main() {
    const int n = 20;
    float host[n * n], *in, *out;
    for (int i = 0; i < n * n; ++i) host[i] = i;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    transpose<<<dim3(2, 2), dim3(TILE, TILE)>>>(in, out, n);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    bool right = true;
    for (int i = 0; i < n * n; ++i) right &= host[i] == i % n * n + i / n;
    std::puts(right ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
