// Blocks that stay in L1: a BLOCK x BLOCK piece of B is copied (and widened to the type of the sums)
// once, then used for BLOCK rows of A, while the sums they belong to stay in L1 as well.
// Memory traffic for B falls by BLOCK, and rows a power of two apart, which would compete for the same
// few sets of the cache, lie next to each other in the copy. Floats of BLOCK = 64 take 2 x 16 KiB.
// With B that near, loading and storing the sums is what is left: 4 rows of B share one pass over them.
#include <algorithm>

using Acc = opw::acc_t<T>;

namespace {

struct Blocks {
    alignas(64) Acc b[BLOCK][BLOCK];
    alignas(64) Acc sums[BLOCK][BLOCK];
};

// sums[rows, cols] += a[rows, depth] * b[depth, cols], where rows of `a` are `stride` apart.
void multiply(const T* a, int64_t stride, Blocks& block, int64_t rows, int64_t cols, int64_t depth) {
    for (int64_t i = 0; i < rows; ++i) {
        const T* row = a + i * stride;
        Acc* sums = block.sums[i];
        int64_t p = 0;
        for (; p + 4 <= depth; p += 4) {
            const Acc f0 = static_cast<Acc>(row[p]), f1 = static_cast<Acc>(row[p + 1]);
            const Acc f2 = static_cast<Acc>(row[p + 2]), f3 = static_cast<Acc>(row[p + 3]);
            const Acc(*b)[BLOCK] = &block.b[p];
            for (int64_t j = 0; j < cols; ++j) {
                sums[j] = sums[j] + f0 * b[0][j] + f1 * b[1][j] + f2 * b[2][j] + f3 * b[3][j];
            }
        }
        for (; p < depth; ++p) {
            const Acc factor = static_cast<Acc>(row[p]);
            for (int64_t j = 0; j < cols; ++j) sums[j] += factor * block.b[p][j];
        }
    }
}

}  // namespace

extern "C" void matmul(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k) {
    Blocks block;
    for (int64_t j0 = 0; j0 < n; j0 += BLOCK) {
        const int64_t cols = std::min<int64_t>(BLOCK, n - j0);
        for (int64_t i0 = 0; i0 < m; i0 += BLOCK) {
            const int64_t rows = std::min<int64_t>(BLOCK, m - i0);
            std::fill_n(&block.sums[0][0], BLOCK * BLOCK, Acc{0});
            for (int64_t p0 = 0; p0 < k; p0 += BLOCK) {
                const int64_t depth = std::min<int64_t>(BLOCK, k - p0);
                for (int64_t p = 0; p < depth; ++p) {
                    const U* row = b + (p0 + p) * n + j0;
                    for (int64_t j = 0; j < cols; ++j) block.b[p][j] = static_cast<Acc>(row[j]);
                }
                multiply(a + i0 * k + p0, k, block, rows, cols, depth);
            }
            for (int64_t i = 0; i < rows; ++i) {
                for (int64_t j = 0; j < cols; ++j) {
                    out[(i0 + i) * n + j0 + j] = static_cast<V>(block.sums[i][j]);
                }
            }
        }
    }
}
