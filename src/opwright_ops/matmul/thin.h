// Products with too few rows or columns for packing to pay: every element of the large operand is used
// once for each of them, so it is read where it lies, once, and memory sets the pace.
//
// Both kinds are one: `few` lines (rows of A, or columns of B), copied so that they lie as is wanted,
// against many (columns of B, or rows of A), which are neighbours or have neighbouring terms.
#pragma once

#include <algorithm>
#include <cstdint>

#include "blocks.h"
#include "opwright/parallel.h"
#include "pack.h"
#include "vectors.h"
#include "workspace.h"

namespace gemm {

// Sums that are worked on at a time, 32 KiB of floats: with few lines, long pieces of the rows of B, so
// that the next page is rarely a surprise.
constexpr int64_t thin_sums = 8192;
constexpr int64_t widest = 4096;

// Where sums of many x few go: the few are rows of the output, or (`turned`) columns.
template <class Out, class Epilogue> struct Thin_out {
    Out* out;
    int64_t n;
    bool turned;
    const Epilogue& epilogue;

    // sums[few, count] are those of lines [first, first + count); rows of sums are `stride` apart.
    template <class Acc>
    void put(const Acc* sums, int64_t stride, int64_t few, int64_t first, int64_t count) const {
        if (!turned) {
            for (int64_t i = 0; i < few; ++i) {
                epilogue(sums + i * stride, out + i * n + first, first, count);
            }
            return;
        }
        for (int64_t j = 0; j < count; ++j) {
            Acc row[std::max(few_rows, few_cols)];
            for (int64_t i = 0; i < few; ++i) row[i] = sums[i * stride + j];
            epilogue(row, out + (first + j) * n, 0, few);
        }
    }
};

// sums[few, cols] += factors[Depth, few] * lines[Depth, cols]; terms are `along` apart, rows of sums
// `stride`.
template <class Isa, int Depth, class Elem>
void add_terms(const typename Isa::Acc* factors, const Elem* lines, typename Isa::Acc* sums,
               int64_t few, int64_t cols, int64_t along, int64_t stride) {
    using Acc = typename Isa::Acc;
    using Vec = typename Isa::Vec;
    int64_t j = 0;
    for (; j + Isa::lanes <= cols; j += Isa::lanes) {
        Vec terms[Depth];
#pragma GCC unroll 4
        for (int d = 0; d < Depth; ++d) terms[d] = Isa::load(lines + d * along + j);
        for (int64_t i = 0; i < few; ++i) {
            Vec sum = Isa::load(sums + i * stride + j);
#pragma GCC unroll 4
            for (int d = 0; d < Depth; ++d) {
                sum = Isa::fma(factors[d * few + i] - Vec{}, terms[d], sum);
            }
            Isa::store(sums + i * stride + j, sum);
        }
    }
    for (; j < cols; ++j) {
        for (int64_t i = 0; i < few; ++i) {
            for (int d = 0; d < Depth; ++d) {
                sums[i * stride + j] += factors[d * few + i] * static_cast<Acc>(lines[d * along + j]);
            }
        }
    }
}

// Lines that are neighbours: their terms, four at a time, are added to rows of sums.
template <class Isa, class Elem, class To>
void thin_neighbours(const typename Isa::Acc* factors, int64_t few, const Lines<Elem>& many,
                     int64_t count, int64_t k, const To& to) {
    using Acc = typename Isa::Acc;
    constexpr int64_t depth = 4;
    const int64_t grain = ceil_div(work_per_thread, few * std::max<int64_t>(k, 1));
    const int64_t width = std::min(widest, thin_sums / few / 64 * 64);
    opw::parallel_for(count, ceil_div(grain, 64) * 64, [=](int64_t begin, int64_t end) {
        alignas(64) Acc sums[thin_sums];
        for (int64_t j = begin; j < end; j += width) {
            const int64_t cols = std::min(width, end - j);
            std::fill_n(sums, few * width, Acc{0});
            int64_t p = 0;
            for (; p + depth <= k; p += depth) {
                add_terms<Isa, depth>(factors + p * few, many.from(j, p).data, sums, few, cols,
                                      many.along, width);
            }
            for (; p < k; ++p) {
                add_terms<Isa, 1>(factors + p * few, many.from(j, p).data, sums, few, cols, many.along,
                                  width);
            }
            to.put(sums, width, few, j, cols);
        }
    });
}

// sums[Few] of the products of `line`, whose terms are neighbours, with Few rows of factors.
template <class Isa, int Few, class Elem>
void dot_line(const typename Isa::Acc* factors, const Elem* line, typename Isa::Acc* sums,
              int64_t stride, int64_t k) {
    using Acc = typename Isa::Acc;
    using Vec = typename Isa::Vec;
    constexpr int lanes = Isa::lanes;
    constexpr int chains = 8 / Few;  // at least 6 sums in flight, 8 hide the latency of an FMA
    Vec partial[Few][chains] = {};
    int64_t p = 0;
    for (; p + chains * lanes <= k; p += chains * lanes) {
#pragma GCC unroll 8
        for (int c = 0; c < chains; ++c) {
            const Vec terms = Isa::load(line + p + c * lanes);
#pragma GCC unroll 4
            for (int i = 0; i < Few; ++i) {
                const Vec row = Isa::load(factors + i * k + p + c * lanes);
                partial[i][c] = Isa::fma(terms, row, partial[i][c]);
            }
        }
    }
    for (int i = 0; i < Few; ++i) {
        Vec lanewise = partial[i][0];
        for (int c = 1; c < chains; ++c) lanewise += partial[i][c];
        Acc sum = 0;
        for (int64_t q = p; q < k; ++q) sum += static_cast<Acc>(line[q]) * factors[i * k + q];
        for (int lane = 0; lane < lanes; ++lane) sum += lanewise[lane];
        sums[i * stride] = sum;
    }
}

// Lines whose terms are neighbours: dot products, of each line with up to four of the few at a time.
template <class Isa, class Elem, class To>
void thin_dots(const typename Isa::Acc* factors, int64_t few, const Lines<Elem>& many, int64_t count,
               int64_t k, const To& to) {
    using Acc = typename Isa::Acc;
    constexpr int64_t piece = 64;
    const int64_t grain = ceil_div(work_per_thread, few * std::max<int64_t>(k, 1));
    opw::parallel_for(count, grain, [=](int64_t begin, int64_t end) {
        Acc sums[std::max(few_rows, few_cols) * piece];
        for (int64_t j = begin; j < end; j += piece) {
            const int64_t lines = std::min(piece, end - j);
            for (int64_t line = 0; line < lines; ++line) {
                const Elem* terms = many.from(j + line, 0).data;
                for (int64_t i = 0; i < few; i += 4) {
                    const Acc* rows = factors + i * k;
                    Acc* at = sums + i * piece + line;
                    switch (std::min<int64_t>(4, few - i)) {
                        case 1: dot_line<Isa, 1>(rows, terms, at, piece, k); break;
                        case 2: dot_line<Isa, 2>(rows, terms, at, piece, k); break;
                        case 3: dot_line<Isa, 3>(rows, terms, at, piece, k); break;
                        default: dot_line<Isa, 4>(rows, terms, at, piece, k);
                    }
                }
            }
            to.put(sums, piece, few, j, lines);
        }
    });
}

// The product of x, `few` lines, and y, `count` of them, where y's strides allow one of the ways above;
// false where they do not.
template <class Isa, class ElemX, class ElemY, class To>
bool thin(const Lines<ElemX>& x, int64_t few, const Lines<ElemY>& y, int64_t count, int64_t k,
          const To& to) {
    using Acc = typename Isa::Acc;
    const bool dots = y.along == 1;
    if (!dots && y.across != 1) return false;
    Acc* factors = scratch<Acc>(few * k);
    for (int64_t i = 0; i < few; ++i) {
        for (int64_t p = 0; p < k; ++p) {
            factors[dots ? i * k + p : p * few + i] = static_cast<Acc>(*x.from(i, p).data);
        }
    }
    if (dots) {
        thin_dots<Isa>(factors, few, y, count, k, to);
    } else {
        thin_neighbours<Isa>(factors, few, y, count, k, to);
    }
    return true;
}

}  // namespace gemm
