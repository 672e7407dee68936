// ROWS x VECTORS vectors of BYTES bytes of the output in registers, DEPTH terms at a time, with as many
// rows of PANELS column panels of B copied to one place.
#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

constexpr int lanes = BYTES / sizeof(float), width = VECTORS * lanes;
using Vector [[gnu::vector_size(BYTES)]] = float;

Vector load(const float* from) {
    Vector v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

// Adds the product of `rows` rows of a and one panel to c; a row of c is `ldc` long.
template <int rows>
void tile(std::int64_t depth, const float* a, std::int64_t lda, const float* panel, float* c,
          std::int64_t ldc) {
    Vector sums[rows][VECTORS] = {};
    for (std::int64_t p = 0; p < depth; ++p, panel += width) {
        Vector b[VECTORS];
        for (int v = 0; v < VECTORS; ++v) b[v] = load(panel + v * lanes);
        for (int i = 0; i < rows; ++i) {
            const Vector x = Vector{} + a[i * lda + p];
            for (int v = 0; v < VECTORS; ++v) sums[i][v] += x * b[v];
        }
    }
    for (int i = 0; i < rows; ++i) {
        for (int v = 0; v < VECTORS; ++v) {
            float* to = c + i * ldc + v * lanes;
            const Vector sum = load(to) + sums[i][v];
            std::memcpy(to, &sum, sizeof sum);
        }
    }
}

template <int rows>
void part(std::int64_t depth, const float* a, std::int64_t lda, const float* panel, float* c,
          std::int64_t ldc, std::int64_t cols) {
    if (cols == width) return tile<rows>(depth, a, lda, panel, c, ldc);
    float edge[rows * width] = {};
    tile<rows>(depth, a, lda, panel, edge, width);
    for (int i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < cols; ++j) c[i * ldc + j] += edge[i * width + j];
    }
}

}  // namespace

extern "C" void product(const T* a, const T* b, T* out, int64_t m, int64_t n, int64_t k) {
    alignas(64) static float packed[DEPTH * PANELS * width];
    std::fill(out, out + m * n, 0.0f);
    for (int64_t left = 0; left < n; left += PANELS * width) {
        const int64_t cols = std::min<int64_t>(PANELS * width, n - left);
        for (int64_t begin = 0; begin < k; begin += DEPTH) {
            const int64_t depth = std::min<int64_t>(DEPTH, k - begin);
            for (int64_t j = 0; j < cols; j += width) {
                const int64_t own = std::min<int64_t>(width, cols - j);
                float* to = packed + j * depth;
                for (int64_t p = 0; p < depth; ++p, to += width) {
                    const float* from = b + (begin + p) * n + left + j;
                    std::copy(from, from + own, to);
                    std::fill(to + own, to + width, 0.0f);
                }
            }
            for (int64_t i = 0; i < m;) {
                const bool whole = m - i >= ROWS;
                for (int64_t j = 0; j < cols; j += width) {
                    const float* from = a + i * k + begin;
                    const float* panel = packed + j * depth;
                    float* to = out + i * n + left + j;
                    const int64_t own = std::min<int64_t>(width, cols - j);
                    if (whole) {
                        part<ROWS>(depth, from, k, panel, to, n, own);
                    } else {
                        part<1>(depth, from, k, panel, to, n, own);
                    }
                }
                i += whole ? ROWS : 1;
            }
        }
    }
}
