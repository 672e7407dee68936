// A block of TILE x TILE threads takes k in steps of TILE: it copies one tile of A and one of B to
// shared memory, each element once, and reads it TILE times from there. Global loads fall by a
// factor of TILE. The tile of A is kept transposed, as the last rung wants it: a warp stores by
// columns, 32 elements that at TILE = 16 lie in 4 of the 32 banks, so that each store takes 8 passes.
extern "C" __global__ void matmul(const T* a, const T* b, T* out, int64_t m, int64_t n, int64_t k) {
    __shared__ opw::acc_t<T> a_tile[TILE][TILE];  // [p][row]
    __shared__ opw::acc_t<T> b_tile[TILE][TILE];  // [p][column]
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
