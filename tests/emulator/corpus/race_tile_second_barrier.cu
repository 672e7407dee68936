// A tiled matrix-vector product that loads the next tile while others still use the last.
#include <cstdio>

const int T = 64;

__global__ void product(const float* matrix, const float* vector, float* out, int n) {
    __shared__ float tile[T];
    int row = blockIdx.x * T + threadIdx.x;
    float sum = 0;
    for (int t = 0; t < n; t += T) {
        tile[threadIdx.x] = vector[t + threadIdx.x];  // EXPECT: race-shared
        __syncthreads();
        for (int k = 0; k < T; ++k) sum += matrix[(t + k) * n + row] * tile[k];
    }
    out[row] = sum;
}

int main() {
    const int n = 128;
    static float host[n * n];
    float *matrix, *vector, *out;
    for (float& value : host) value = 1;
    cudaMalloc(&matrix, sizeof host);
    cudaMalloc(&vector, n * sizeof(float));
    cudaMalloc(&out, n * sizeof(float));
    cudaMemcpy(matrix, host, sizeof host, cudaMemcpyHostToDevice);
    cudaMemcpy(vector, host, n * sizeof(float), cudaMemcpyHostToDevice);
    product<<<n / T, T>>>(matrix, vector, out, n);
    cudaMemcpy(host, out, n * sizeof(float), cudaMemcpyDeviceToHost);
    bool right = true;
    for (int i = 0; i < n; ++i) right &= host[i] == n;
    std::puts(right ? "ok" : "wrong");
    cudaFree(matrix);
    cudaFree(vector);
    cudaFree(out);
}
