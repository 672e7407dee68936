// Wider requests: a quarter of the threads copies the tile of A, four neighbours at a time, another
// quarter the tile of B. A is not transposed, so that four steps of the inner loop, unrolled, read
// their elements of A by one request (the same for all lanes) and of B by four: 5 instead of 8.
#include "fours.cuh"

extern "C" __global__ void matmul(const T* a, const T* b, T* out, int64_t m, int64_t n, int64_t k) {
    using Sum = opw::acc_t<T>;
    constexpr int fours_a_row = TILE / 4, fours_a_tile = TILE * fours_a_row;
    __shared__ __align__(16) Sum a_tile[TILE][TILE];  // [row][p]
    __shared__ __align__(16) Sum b_tile[TILE][TILE];  // [p][column]
    const int x = threadIdx.x, y = threadIdx.y, thread = y * TILE + x;
    const int64_t first_column = int64_t{blockIdx.x} * TILE, first_row = int64_t{blockIdx.y} * TILE;
    const bool for_a = thread < fours_a_tile, for_b = !for_a && thread < 2 * fours_a_tile;
    const int tile_row = thread % fours_a_tile / fours_a_row, tile_column = thread % fours_a_row * 4;
    const bool wide_a = fours::aligned(a, k), wide_b = fours::aligned(b, n);
    Sum sum = 0;
    for (int64_t first = 0; first < k; first += TILE) {
        Sum four[4];
        if (for_a) {
            const int64_t row = first_row + tile_row;
            fours::load_row(a + row * k, first + tile_column, k, row < m, wide_a, four);
            fours::store(&a_tile[tile_row][tile_column], four);
        } else if (for_b) {
            const int64_t p = first + tile_row;
            fours::load_row(b + p * n, first_column + tile_column, n, p < k, wide_b, four);
            fours::store(&b_tile[tile_row][tile_column], four);
        }
        __syncthreads();
#pragma unroll
        for (int p = 0; p < TILE; p += 4) {
            fours::load(&a_tile[y][p], four);
            sum += four[0] * b_tile[p][x];
            sum += four[1] * b_tile[p + 1][x];
            sum += four[2] * b_tile[p + 2][x];
            sum += four[3] * b_tile[p + 3][x];
        }
        __syncthreads();  // before the next step overwrites what slower warps still read
    }
    const int64_t row = first_row + y, column = first_column + x;
    if (row < m && column < n) out[row * n + column] = static_cast<T>(sum);
}
