// Divides each row of a matrix by the sum of the row.
#include <cstdio>
#include <cstdlib>
#include <vector>

const int WARP = 32, ROWS = 8;  // a block takes 8 rows, a warp the columns of each

__global__ void normalize(const float* in, float* out, int rows, int columns) {
    const int x = threadIdx.x, row = blockIdx.x * ROWS + threadIdx.y;
    if (row >= rows) return;
    float sum = 0;
    for (int column = x; column < columns; column += WARP) sum += in[row * columns + column];
    for (int step = WARP / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    for (int column = x; column < columns; column += WARP) {
        out[row * columns + column] = in[row * columns + column] / sum;
    }
}

int main(int argc, char** argv) {
    const int rows = argc > 1 ? std::atoi(argv[1]) : 64, columns = 256;
    std::vector<float> host(rows * columns, 0.5f);
    float *in, *out;
    const size_t bytes = host.size() * sizeof(float);
    cudaMalloc(&in, bytes);
    cudaMalloc(&out, bytes);
    cudaMemcpy(in, host.data(), bytes, cudaMemcpyHostToDevice);
    normalize<<<(rows + ROWS - 1) / ROWS, dim3(WARP, ROWS)>>>(in, out, rows, columns);
    cudaMemcpy(host.data(), out, bytes, cudaMemcpyDeviceToHost);
    int wrong = 0;
    for (const float value : host) wrong += value != 1.0f / columns;
    std::printf("%d of %d values are wrong\n", wrong, rows * columns);
    cudaFree(in);
    cudaFree(out);
}
