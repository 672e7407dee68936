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

// Lines that are worked on at a time: long pieces of the rows of B, so that the next page is rarely a
// surprise, in steps of so many rows, which are as many streams for the processor to follow, prefetched
// so many elements ahead. 8 x 4096 floats of sums are 128 KiB of L2. (8 x 4096 x 4096 in f32: 4.3 ms; with
// a quarter of the sums 5.8, with 16 rows 4.7, with 32 rows and streams 9.1.)
constexpr int64_t thin_width = 4096, thin_depth = 8, ahead = 64;

// Where sums of many x few go: the few are rows of the output, or (`turned`) columns.
template <class Out, class Epilogue> struct Thin_out {
    Out* out;
    int64_t n;
    bool turned;
    const Epilogue& epilogue;

    // sums[few, count] are those of lines [first, first + count); rows of sums are `stride` apart.
    template <class Acc>
    __attribute__((noinline)) void put(const Acc* sums, int64_t stride, int64_t few, int64_t first,
                                       int64_t count) const {
        if (!turned) {
            for (int64_t i = 0; i < few; ++i) {
                epilogue(sums + i * stride, out + i * n + first, first, count);
            }
            return;
        }
        for (int64_t j = 0; j < count; ++j) {
            Acc row[most_dots];
            for (int64_t i = 0; i < few; ++i) row[i] = sums[i * stride + j];
            epilogue(row, out + (first + j) * n, 0, few);
        }
    }
};

// sums[Few, Vectors * lanes] += factors[depth, Few] * lines[depth, Vectors * lanes]; terms are `along`
// apart, rows of sums `stride`.
template <class Isa, int Few, int Vectors, class Elem>
void add_terms(int64_t depth, const typename Isa::Acc* factors, const Elem* lines, int64_t along,
               typename Isa::Acc* sums, int64_t stride) {
    using Vec = typename Isa::Vec;
    Vec tile[Few][Vectors];
#pragma GCC unroll 8
    for (int i = 0; i < Few; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) tile[i][v] = Isa::load(sums + i * stride + v * Isa::lanes);
    }
    for (int64_t d = 0; d < depth; ++d, factors += Few, lines += along) {
        Vec row[Vectors];
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) {
            row[v] = Isa::load(lines + v * Isa::lanes);
            __builtin_prefetch(lines + v * Isa::lanes + ahead);
        }
#pragma GCC unroll 8
        for (int i = 0; i < Few; ++i) {
            const Vec factor = factors[i] - Vec{};
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; ++v) tile[i][v] = Isa::fma(factor, row[v], tile[i][v]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < Few; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) Isa::store(sums + i * stride + v * Isa::lanes, tile[i][v]);
    }
}

// The same for `cols` lines, any number, and a depth up to `thin_depth`. There is room for sums of as many
// lines as whole registers hold.
template <class Isa, int Few, class Elem>
void add_terms(int64_t depth, const typename Isa::Acc* factors, const Elem* lines, int64_t along,
               typename Isa::Acc* sums, int64_t stride, int64_t cols) {
    constexpr int vectors = 2, wide = vectors * Isa::lanes;
    for (int64_t j = 0; j < cols; j += wide) {
        const Elem* from = lines + j;
        int64_t apart = along;
        Elem last[thin_depth * wide];
        if (j + wide > cols) {  // the last ones, with zeros behind
            std::fill_n(last, thin_depth * wide, Elem{});
            for (int64_t d = 0; d < depth; ++d) std::copy_n(from + d * along, cols - j, last + d * wide);
            from = last;
            apart = wide;
        }
        add_terms<Isa, Few, vectors>(depth, factors, from, apart, sums + j, stride);
    }
}

// Lines that are neighbours: their terms, a few at a time, are added to `Few` rows of sums, of which `few`
// are wanted.
template <class Isa, int Few, class Elem, class To>
void thin_neighbours(const typename Isa::Acc* factors, int64_t few, const Lines<Elem>& many,
                     int64_t count, int64_t k, const To& to) {
    using Acc = typename Isa::Acc;
    const int64_t grain = ceil_div(work_per_thread, Few * std::max<int64_t>(k, 1));
    opw::parallel_for(count, ceil_div(grain, 64) * 64, [=](int64_t begin, int64_t end) {
        alignas(64) Acc sums[Few * thin_width];
        for (int64_t j = begin; j < end; j += thin_width) {
            const int64_t cols = std::min(thin_width, end - j);
            const int64_t held = ceil_div(cols, 64) * 64;
            for (int i = 0; i < Few; ++i) std::fill_n(sums + i * thin_width, held, Acc{0});
            for (int64_t p = 0; p < k; p += thin_depth) {
                add_terms<Isa, Few>(std::min(thin_depth, k - p), factors + p * Few,
                                    many.from(j, p).data, many.along, sums, thin_width, cols);
            }
            to.put(sums, thin_width, few, j, cols);
        }
    });
}

// How many lines share what is loaded of up to four of the few: as many as leave room for their sums.
template <class Isa> constexpr int dot_lines = std::max(1, Isa::rows / 3);

// The last `depth` terms, one at a time, and the sum of the lanes. Not inlined: at 16 places it is 16 times
// as long, 3 KB of a library.
template <class Isa, class Elem>
__attribute__((noinline)) typename Isa::Acc finish_dot(typename Isa::Vec lanewise,
                                                       const typename Isa::Acc* factors,
                                                       const Elem* line, int64_t depth) {
    using Acc = typename Isa::Acc;
    Acc sum = 0;
    for (int64_t q = 0; q < depth; ++q) sum += static_cast<Acc>(line[q]) * factors[q];
    return sum + sum_of_lanes<Acc>(lanewise);
}

// sums[Few, Count] of the products of Count lines, whose terms are neighbours and which are `across`
// apart, and Few rows of factors.
template <class Isa, int Few, int Count, class Elem>
void dots(const typename Isa::Acc* factors, const Elem* lines, int64_t across, typename Isa::Acc* sums,
          int64_t stride, int64_t k) {
    using Vec = typename Isa::Vec;
    constexpr int lanes = Isa::lanes;
    // 8 sums in flight hide the latency of an FMA. The same for every Count: so are the sums.
    constexpr int chains = std::max(1, 8 / (Few * dot_lines<Isa>));
    Vec partial[Few][Count][chains] = {};
    int64_t p = 0;
    for (; p + chains * lanes <= k; p += chains * lanes) {
#pragma GCC unroll 8
        for (int c = 0; c < chains; ++c) {
            Vec rows[Few];
#pragma GCC unroll 4
            for (int i = 0; i < Few; ++i) rows[i] = Isa::load(factors + i * k + p + c * lanes);
#pragma GCC unroll 4
            for (int j = 0; j < Count; ++j) {
                // Of the lines that come next (8 rows, B transposed, 4096 x 4096: 5.4 ms without, 3.8 with).
                __builtin_prefetch(lines + (Count + j) * across + p + c * lanes, 0, 2);
                const Vec terms = Isa::load(lines + j * across + p + c * lanes);
#pragma GCC unroll 4
                for (int i = 0; i < Few; ++i) {
                    partial[i][j][c] = Isa::fma(terms, rows[i], partial[i][j][c]);
                }
            }
        }
    }
    for (int i = 0; i < Few; ++i) {
        for (int j = 0; j < Count; ++j) {
            Vec lanewise = partial[i][j][0];
            for (int c = 1; c < chains; ++c) lanewise += partial[i][j][c];
            sums[i * stride + j] =
                finish_dot<Isa>(lanewise, factors + i * k + p, lines + j * across + p, k - p);
        }
    }
}

template <class Isa, int Count, class Elem>
void dots(const typename Isa::Acc* factors, int64_t few, const Elem* lines, int64_t across,
          typename Isa::Acc* sums, int64_t stride, int64_t k) {
    for (int64_t i = 0; i < few; i += 4, factors += 4 * k, sums += 4 * stride) {
        switch (few - i) {
            case 1: dots<Isa, 1, Count>(factors, lines, across, sums, stride, k); break;
            case 2: dots<Isa, 2, Count>(factors, lines, across, sums, stride, k); break;
            default: dots<Isa, 4, Count>(factors, lines, across, sums, stride, k);
        }
    }
}

// Lines whose terms are neighbours: dot products.
template <class Isa, class Elem, class To>
void thin_dots(const typename Isa::Acc* factors, int64_t held, int64_t few, const Lines<Elem>& many,
               int64_t count, int64_t k, const To& to) {
    using Acc = typename Isa::Acc;
    constexpr int64_t piece = 64;
    constexpr int together = dot_lines<Isa>;
    const int64_t grain = ceil_div(work_per_thread, few * std::max<int64_t>(k, 1));
    opw::parallel_for(count, grain, [=](int64_t begin, int64_t end) {
        Acc sums[most_dots * piece];
        for (int64_t j = begin; j < end; j += piece) {
            const int64_t lines = std::min(piece, end - j);
            int64_t i = 0;
            for (; i + together <= lines; i += together) {
                dots<Isa, together>(factors, held, many.from(j + i, 0).data, many.across, sums + i, piece,
                                    k);
            }
            for (; i < lines; ++i) {
                dots<Isa, 1>(factors, held, many.from(j + i, 0).data, 0, sums + i, piece, k);
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
    // Three lines have one of zeros beside them, and any odd number for dot products, instead of kernels of
    // their own.
    const int64_t held = few == 3 || (dots && few > 1) ? ceil_div(few, 2) * 2 : few;
    Acc* factors = scratch<Acc>(held * k);
    for (int64_t i = 0; i < held; ++i) {
        for (int64_t p = 0; p < k; ++p) {
            factors[dots ? i * k + p : p * held + i] = i < few ? static_cast<Acc>(*x.from(i, p).data) : 0;
        }
    }
    if (dots) {
        thin_dots<Isa>(factors, held, few, y, count, k, to);
        return true;
    }
    switch (held) {
        case 1: thin_neighbours<Isa, 1>(factors, few, y, count, k, to); break;
        case 2: thin_neighbours<Isa, 2>(factors, few, y, count, k, to); break;
        case 4: thin_neighbours<Isa, 4>(factors, few, y, count, k, to); break;
        case 5: thin_neighbours<Isa, 5>(factors, few, y, count, k, to); break;
        case 6: thin_neighbours<Isa, 6>(factors, few, y, count, k, to); break;
        case 7: thin_neighbours<Isa, 7>(factors, few, y, count, k, to); break;
        default: thin_neighbours<Isa, 8>(factors, few, y, count, k, to);
    }
    return true;
}

}  // namespace gemm
