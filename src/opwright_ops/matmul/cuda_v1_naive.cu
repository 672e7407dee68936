// One thread for each element of the result, lanes along the rows: threadIdx.x counts rows. The 32
// lanes of a warp read 32 rows of A and write 32 rows of the result, each in a sector of its own, so
// that of 32 bytes moved 4 are used. B is the same element for all of them: one sector.
extern "C" __global__ void matmul(const T* a, const T* b, T* out, int64_t m, int64_t n, int64_t k) {
    const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    const int64_t column = int64_t{blockIdx.y} * blockDim.y + threadIdx.y;
    if (row >= m || column >= n) return;
    opw::acc_t<T> sum = 0;
    for (int64_t p = 0; p < k; ++p) {
        sum += static_cast<opw::acc_t<T>>(a[row * k + p]) * static_cast<opw::acc_t<T>>(b[p * n + column]);
    }
    out[row * n + column] = static_cast<T>(sum);
}
