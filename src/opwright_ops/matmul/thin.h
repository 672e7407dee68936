// Products with too few rows or columns for packing to pay: every element of the large operand is used
// once for each of them, so it is read where it lies, once, and memory sets the pace.
#pragma once

#include <algorithm>
#include <cstdint>

#include "blocks.h"
#include "opwright/parallel.h"
#include "vectors.h"
#include "workspace.h"

namespace gemm {

// Sums that few_rows() works on at a time, 32 KiB of floats: with few rows, long pieces of the rows of
// B, so that the next page is rarely a surprise.
constexpr int64_t thin_sums = 8192;
constexpr int64_t widest = 4096;

// sums[rows, cols] += factors[rows, Depth] * b[Depth, cols]; rows of b are n apart, rows of sums
// `stride`.
template <class Isa, int Depth, class Elem>
void add_rows(const typename Isa::Acc* factors, const Elem* b, typename Isa::Acc* sums, int64_t rows,
              int64_t cols, int64_t n, int64_t stride) {
    using Acc = typename Isa::Acc;
    using Vec = typename Isa::Vec;
    int64_t j = 0;
    for (; j + Isa::lanes <= cols; j += Isa::lanes) {
        Vec terms[Depth];
#pragma GCC unroll 4
        for (int d = 0; d < Depth; ++d) terms[d] = Isa::load(b + d * n + j);
        for (int64_t i = 0; i < rows; ++i) {
            Vec sum = Isa::load(sums + i * stride + j);
#pragma GCC unroll 4
            for (int d = 0; d < Depth; ++d) {
                sum = Isa::fma(factors[i * Depth + d] - Vec{}, terms[d], sum);
            }
            Isa::store(sums + i * stride + j, sum);
        }
    }
    for (; j < cols; ++j) {
        for (int64_t i = 0; i < rows; ++i) {
            for (int d = 0; d < Depth; ++d) {
                sums[i * stride + j] += factors[i * Depth + d] * static_cast<Acc>(b[d * n + j]);
            }
        }
    }
}

// out[m, n] = a[m, k] * b[k, n] for m <= few: rows of B, four at a time, are added to rows of sums.
template <class Isa, class Elem>
void few_rows(const Elem* a, const Elem* b, Elem* out, int64_t m, int64_t n, int64_t k) {
    using Acc = typename Isa::Acc;
    constexpr int64_t depth = 4;
    const int64_t grain = ceil_div(work_per_thread, m * std::max<int64_t>(k, 1));
    const int64_t width = std::min(widest, thin_sums / m / 64 * 64);
    opw::parallel_for(n, ceil_div(grain, 64) * 64, [=](int64_t begin, int64_t end) {
        alignas(64) Acc sums[thin_sums];
        Acc factors[few * depth];
        for (int64_t j = begin; j < end; j += width) {
            const int64_t cols = std::min(width, end - j);
            std::fill_n(sums, m * width, Acc{0});
            int64_t p = 0;
            for (; p + depth <= k; p += depth) {
                for (int64_t i = 0; i < m; ++i) {
                    for (int64_t d = 0; d < depth; ++d) {
                        factors[i * depth + d] = static_cast<Acc>(a[i * k + p + d]);
                    }
                }
                add_rows<Isa, depth>(factors, b + p * n + j, sums, m, cols, n, width);
            }
            for (; p < k; ++p) {
                for (int64_t i = 0; i < m; ++i) factors[i] = static_cast<Acc>(a[i * k + p]);
                add_rows<Isa, 1>(factors, b + p * n + j, sums, m, cols, n, width);
            }
            for (int64_t i = 0; i < m; ++i) convert<Isa>(sums + i * width, out + i * n + j, cols);
        }
    });
}

// out[m, Cols] = a[m, k] * b[k, Cols]: each row of A against the columns of B, which are copied so
// that both lie along k.
template <class Isa, int Cols, class Elem>
void few_cols(const Elem* a, const Elem* b, Elem* out, int64_t m, int64_t k) {
    using Acc = typename Isa::Acc;
    using Vec = typename Isa::Vec;
    constexpr int lanes = Isa::lanes;
    constexpr int chains = 8 / Cols;  // at least 6 sums in flight, 8 hide the latency of an FMA
    Acc* columns = scratch<Acc>(Cols * k);
    for (int64_t p = 0; p < k; ++p) {
        for (int j = 0; j < Cols; ++j) columns[j * k + p] = static_cast<Acc>(b[p * Cols + j]);
    }
    const int64_t grain = ceil_div(work_per_thread, Cols * std::max<int64_t>(k, 1));
    opw::parallel_for(m, grain, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const Elem* row = a + i * k;
            Vec sums[Cols][chains] = {};
            int64_t p = 0;
            for (; p + chains * lanes <= k; p += chains * lanes) {
#pragma GCC unroll 8
                for (int c = 0; c < chains; ++c) {
                    const Vec factors = Isa::load(row + p + c * lanes);
#pragma GCC unroll 4
                    for (int j = 0; j < Cols; ++j) {
                        const Vec column = Isa::load(columns + j * k + p + c * lanes);
                        sums[j][c] = Isa::fma(factors, column, sums[j][c]);
                    }
                }
            }
            for (int j = 0; j < Cols; ++j) {
                Vec lanewise = sums[j][0];
                for (int c = 1; c < chains; ++c) lanewise += sums[j][c];
                Acc sum = 0;
                for (int64_t q = p; q < k; ++q) sum += static_cast<Acc>(row[q]) * columns[j * k + q];
                for (int lane = 0; lane < lanes; ++lane) sum += lanewise[lane];
                out[i * Cols + j] = static_cast<Elem>(sum);
            }
        }
    });
}

}  // namespace gemm
