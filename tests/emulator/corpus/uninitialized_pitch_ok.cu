// A row of a pitched array is summed to its width.
#include <cstdio>

__global__ void row_sums(const char* data, size_t pitch, int width, float* sums) {
    const float* row = reinterpret_cast<const float*>(data + threadIdx.x * pitch);
    float sum = 0;
    for (int i = 0; i < width; ++i) sum += row[i];
    sums[threadIdx.x] = sum;
}

int main() {
    const int width = 10, height = 4;
    float host[height][width], result[height], *sums;
    for (auto& row : host) for (float& value : row) value = 1;
    char* data;
    size_t pitch;
    cudaMallocPitch(&data, &pitch, sizeof host[0], height);
    cudaMalloc(&sums, sizeof result);
    cudaMemcpy2D(data, pitch, host, sizeof host[0], sizeof host[0], height, cudaMemcpyHostToDevice);
    row_sums<<<1, height>>>(data, pitch, width, sums);
    cudaMemcpy(result, sums, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result[0] == 10 && result[3] == 10 ? "ok" : "wrong");
    cudaFree(data);
    cudaFree(sums);
}
