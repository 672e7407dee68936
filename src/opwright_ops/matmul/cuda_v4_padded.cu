// The same with more columns in the tile of A than are used, 2 of them at TILE = 16: element [x][y]
// then lies in bank (18 x + y) mod 32, another one for each lane, and a warp stores in one pass.
extern "C" __global__ void matmul(const T* a, const T* b, T* out, int64_t m, int64_t n, int64_t k) {
    __shared__ opw::acc_t<T> a_tile[TILE][TILE + 32 / TILE];  // [p][row]
    __shared__ opw::acc_t<T> b_tile[TILE][TILE];              // [p][column]
    const int x = threadIdx.x, y = threadIdx.y;
    const int64_t column = int64_t{blockIdx.x} * TILE + x;
    const int64_t row = int64_t{blockIdx.y} * TILE + y;
    opw::acc_t<T> sum = 0;
    for (int64_t first = 0; first < k; first += TILE) {
        // Beyond an edge the tiles hold zeros, which add nothing.
        a_tile[x][y] = row < m && first + x < k ? static_cast<opw::acc_t<T>>(a[row * k + first + x]) : 0;
        b_tile[y][x] = first + y < k && column < n ? static_cast<opw::acc_t<T>>(b[(first + y) * n + column]) : 0;
        __syncthreads();
        for (int p = 0; p < TILE; ++p) sum += a_tile[p][y] * b_tile[p][x];
        __syncthreads();  // before the next step overwrites what slower warps still read
    }
    if (row < m && column < n) out[row * n + column] = static_cast<T>(sum);
}
