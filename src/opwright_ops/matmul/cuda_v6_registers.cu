// 4 x 4 results a thread, kept in registers: each step of the inner loop reads 4 elements of A and 4
// of B, two requests of 16 bytes, for 16 multiply-adds, where one result a thread needs two requests
// for one. 16 x 16 threads make a tile of 64 x 64. A is transposed again, so that the 4 rows of a
// thread are neighbours; its rows are padded by 4, which keeps them aligned for 16 bytes.
#include "fours.cuh"

extern "C" __global__ void matmul(const T* a, const T* b, T* out, int64_t m, int64_t n, int64_t k) {
    using Sum = opw::acc_t<T>;
    constexpr int tile = 64, threads = 256;
    __shared__ __align__(16) Sum a_tile[DEPTH][tile + 4];  // [p][row]
    __shared__ __align__(16) Sum b_tile[DEPTH][tile];      // [p][column]
    const int x = threadIdx.x, y = threadIdx.y, thread = y * 16 + x;
    const int64_t first_column = int64_t{blockIdx.x} * tile, first_row = int64_t{blockIdx.y} * tile;
    const bool wide_a = fours::aligned(a, k), wide_b = fours::aligned(b, n), wide_out = fours::aligned(out, n);
    Sum sum[4][4] = {};
    for (int64_t first = 0; first < k; first += DEPTH) {
        Sum four[4];
        for (int i = thread; i < tile * DEPTH / 4; i += threads) {
            const int tile_row = i / (DEPTH / 4), p = i % (DEPTH / 4) * 4;
            const int64_t row = first_row + tile_row;
            fours::load_row(a + row * k, first + p, k, row < m, wide_a, four);
            for (int j = 0; j < 4; ++j) a_tile[p + j][tile_row] = four[j];
        }
        for (int i = thread; i < tile * DEPTH / 4; i += threads) {
            const int p = i / (tile / 4), tile_column = i % (tile / 4) * 4;
            fours::load_row(b + (first + p) * n, first_column + tile_column, n, first + p < k, wide_b, four);
            fours::store(&b_tile[p][tile_column], four);
        }
        __syncthreads();
        for (int p = 0; p < DEPTH; ++p) {
            Sum of_a[4], of_b[4];
            fours::load(&a_tile[p][y * 4], of_a);
            fours::load(&b_tile[p][x * 4], of_b);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[i][j] += of_a[i] * of_b[j];
            }
        }
        __syncthreads();  // before the next step overwrites what slower warps still read
    }
    const int64_t column = first_column + x * 4;
    for (int i = 0; i < 4; ++i) {
        const int64_t row = first_row + y * 4 + i;
        if (row >= m) return;
        if (wide_out && column + 4 <= n) {
            fours::store(out + row * n + column, sum[i]);
        } else {
            for (int j = 0; j < 4 && column + j < n; ++j) out[row * n + column + j] = static_cast<T>(sum[i][j]);
        }
    }
}
