// One thread for each element, lanes along the columns: threadIdx.x counts columns. A warp now reads
// 32 neighbours of B and writes 32 neighbours of the result: 4 sectors instead of 32, every byte of
// them used. Its element of A is the same for all lanes: one sector.
extern "C" __global__ void matmul(const T* a, const T* b, T* out, int64_t m, int64_t n, int64_t k) {
    const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    const int64_t row = int64_t{blockIdx.y} * blockDim.y + threadIdx.y;
    if (row >= m || column >= n) return;
    opw::acc_t<T> sum = 0;
    for (int64_t p = 0; p < k; ++p) {
        sum += static_cast<opw::acc_t<T>>(a[row * k + p]) * static_cast<opw::acc_t<T>>(b[p * n + column]);
    }
    out[row * n + column] = static_cast<T>(sum);
}
