// A tiled matrix product without the barrier between loading a tile and using it.
#include <cstdio>

const int T = 8;

__global__ void matmul(const float* a, const float* b, float* c, int n) {
    __shared__ float left[T][T], right[T][T];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * T + y, column = blockIdx.x * T + x;
    float sum = 0;
    for (int t = 0; t < n; t += T) {
        left[y][x] = a[row * n + t + x];
        right[y][x] = x == y ? b[(t + y) * n + column] : 0;  // EXPECT: race-shared
        for (int k = 0; k < T; ++k) sum += a[row * n + t + k] * right[k][x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

int main() {
    const int n = 16;
    float host[n * n], *a, *b, *c;
    cudaMalloc(&a, sizeof host);
    cudaMalloc(&b, sizeof host);
    cudaMalloc(&c, sizeof host);
    for (int i = 0; i < n * n; ++i) host[i] = 1;
    cudaMemcpy(a, host, sizeof host, cudaMemcpyHostToDevice);
    cudaMemcpy(b, host, sizeof host, cudaMemcpyHostToDevice);
    matmul<<<dim3(n / T, n / T), dim3(T, T)>>>(a, b, c, n);
    cudaMemcpy(host, c, sizeof host, cudaMemcpyDeviceToHost);
    bool right = true;
    for (float value : host) right &= value == n / T;
    std::puts(right ? "ok" : "wrong");
    cudaFree(a);
    cudaFree(b);
    cudaFree(c);
}
