// Rows of a pitched allocation, with the guard for the rows that the grid has too many.
#include <cstdio>

__global__ void fill(char* data, size_t pitch, int width, int height) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column >= width || row >= height) return;
    float* line = reinterpret_cast<float*>(data + row * pitch);
    line[column] = row * 100 + column;
}

int main() {
    const int width = 20, height = 7;
    float host[height][width];
    char* data;
    size_t pitch;
    cudaMallocPitch(&data, &pitch, width * sizeof(float), height);
    fill<<<dim3(2, 4), dim3(16, 2)>>>(data, pitch, width, height);
    cudaMemcpy2D(host, sizeof host[0], data, pitch, sizeof host[0], height, cudaMemcpyDeviceToHost);
    bool right = true;
    for (int r = 0; r < height; ++r) for (int c = 0; c < width; ++c) right &= host[r][c] == r * 100 + c;
    std::puts(right ? "ok" : "wrong");
    cudaFree(data);
}
