// Divides each row of a matrix by the sum of the row.
#include <cstdio>
#include <cstdlib>
#include <vector>

const int ROWS = 32, SHARES = 8;  // a block takes 32 rows, 8 threads share the columns of each

__global__ void normalize(const float* in, float* out, int rows, int columns) {
    __shared__ float sums[SHARES][ROWS];
    const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.x * ROWS + x;
    float sum = 0;
    for (int column = y; column <= columns; column += SHARES) sum += in[row * columns + column];
    sums[y][x] = sum;
    __syncthreads();
    for (int half = SHARES / 2; half > 0; half /= 2) {
        if (y < half) sums[y][x] += sums[y + half][x];
    }
    for (int column = y; column < columns; column += SHARES) {
        out[row * columns + column] = in[row * columns + column] / sums[0][x];
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
    normalize<<<rows / ROWS, dim3(ROWS, SHARES)>>>(in, out, rows, columns);
    cudaMemcpy(host.data(), out, bytes, cudaMemcpyDeviceToHost);
    int wrong = 0;
    for (const float value : host) wrong += value != 1.0f / columns;
    std::printf("%d of %d values are wrong\n", wrong, rows * columns);
    cudaFree(in);
    cudaFree(out);
}
