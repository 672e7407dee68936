// Products with few rows or columns where an instruction sums whole groups of terms: the large operand is
// read once where it lies, and its elements are put in groups on the way, not in memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "blocks.h"
#include "micro_kernel.h"
#include "opwright/parallel.h"
#include "pack.h"
#include "thin.h"
#include "vectors.h"
#include "workspace.h"

namespace gemm {

// Up to so many rows, packing all of B costs more than packing a little of it at a time, from where sums are
// loaded and stored more often: half a tile's where caches hold B, more where it comes from memory. (Bytes, 16
// rows: 1000 x 1000 118 us this way and 111 from blocks, 4096 x 4096 2.2 and 2.9 ms.)
constexpr int64_t few_tile_rows(int64_t bytes) { return from_memory(bytes) ? 16 : 6; }

// Columns that have sums at a time: 16 x 2048 sums are 128 KiB of L2. They are loaded and stored once for a
// line of packed terms, and B is packed in pieces of `dot_bytes` of as many rows, with the same of a later
// piece prefetched. Lines a power of two apart share 8 places of L1, so they are fetched into L2, and pieces
// are long and packed row by row: of 64 bytes, a panel at a time, some would be gone before their turn. (8 x
// 4096 x 4096, one thread, pieces of 64 and 256 bytes: bf16 4.2 and 2.85 ms, bytes 2.15 and 1.8.)
constexpr int64_t dot_width = 4096, dot_bytes = 256, dot_ahead = 256;
template <class Acc> constexpr int64_t dot_sums = (128 << 10) / sizeof(Acc);
template <class Packed> constexpr int64_t dot_depth = 64 / sizeof(Packed);
// Where terms of B are neighbours, 2 KiB of each of a panel's columns are read at a time. Blocks of B cut them
// shorter, so this is for more rows, and where there is so much of a column for as many as have their sums in
// L1. (One thread, n = k = 4096: bf16, 8 rows 4.4 ms with 256 bytes and 3.8 with 2 KiB; f32, 128 rows 44.7 ms,
// in blocks 48.5.)
template <class Packed> constexpr int64_t turned_depth = 2048 / sizeof(Packed);
template <class Packed> constexpr int64_t few_turned_rows(int64_t k) {
    return k < turned_depth<Packed> ? 64 : 256;
}

// A few rows of A against columns of B that are neighbours, or whose terms are: for `depth` terms and `at_once`
// columns, the micro-kernel adds to rows of sums, from packed terms that never leave L1.
template <class Isa, class ElemA, class ElemB, class To>
void few_rows_of_tiles(const Lines<ElemA>& a, int64_t few, const Lines<ElemB>& b, int64_t n, int64_t k,
                       const To& to) {
    using Acc = typename Isa::Acc;
    using Packed_a = typename Isa::Packed_a;
    using Packed_b = typename Isa::Packed_b;
    using Pack_a = Packer<Isa, ElemA, Packed_a>;
    using Pack_b = Packer<Isa, ElemB, Packed_b, Isa::flip_b>;
    using Micro = Tile<Isa>;
    static_assert(dot_depth<Packed_b> % Isa::step == 0 && turned_depth<Packed_b> % Isa::step == 0);
    constexpr int64_t piece = dot_bytes / sizeof(ElemB);
    static_assert(piece % Micro::cols == 0);
    constexpr int64_t room = std::max(turned_depth<Packed_b> * Micro::cols, dot_depth<Packed_b> * piece);

    const bool turned = b.across != 1;
    const int64_t depth = turned ? turned_depth<Packed_b> : dot_depth<Packed_b>;
    const int64_t stride = (ceil_div(depth, Pack_a::block) + Isa::tail) * Pack_a::block;
    const int64_t chunks = ceil_div(k, depth);
    Packed_a* packed = scratch<Packed_a>(std::max<int64_t>(1, chunks) * few * stride);
    for (int64_t c = 0; c < chunks; ++c) {
        const int64_t terms = std::min(depth, k - c * depth);
        Pack_a::rows(a.from(0, c * depth), few, few, terms, packed + c * few * stride, opaque(stride));
    }
    // Terms of one panel follow each other in memory where columns do not.
    const int64_t at_once = turned ? Micro::cols : piece;
    const int64_t width = turned ? at_once : std::min(dot_width, dot_sums<Acc> / few / piece * piece);
    const int64_t parts = ceil_div(few, Isa::rows);
    const int64_t grain = ceil_div(work_per_thread, few * std::max<int64_t>(k, 1));
    opw::parallel_for(n, ceil_div(grain, 64) * 64, [=](int64_t begin, int64_t end) {
        alignas(64) Acc sums[dot_sums<Acc>];
        alignas(64) Packed_b panel[room];
        for (int64_t j = begin; j < end; j += width) {
            const int64_t cols = std::min(width, end - j);
            if (k == 0) std::fill_n(sums, few * width, Acc{0});
            for (int64_t c = 0; c < chunks; ++c) {
                const int64_t terms = std::min(depth, k - c * depth);
                const int64_t padded = ceil_div(terms, Isa::step) * Isa::step;
                const Packed_a* rows = packed + c * few * stride;
                for (int64_t t = 0; t < cols; t += at_once) {
                    const int64_t wide = std::min(at_once, cols - t);
                    const int64_t row = whole_vectors<Isa>(wide) * Isa::group;
                    // Row by row, and up to `at_once`, which a compiler does not know: unrolled, they come too
                    // fast for the processor to take all (bf16, 1 row: 1.65 ms, else 2.1).
                    for (int64_t p = 0; p < terms && !turned; ++p) {
                        const ElemB* const ahead = b.from(j + t + dot_ahead, c * depth + p).data;
                        for (int64_t u = 0; u < at_once; u += 64 / sizeof(ElemB)) {
                            __builtin_prefetch(ahead + u, 0, 2);
                        }
                    }
                    Pack_b::panel(b.from(j + t, c * depth), wide, terms, panel);
                    for (int64_t part = 0; part < parts; ++part) {
                        const int64_t top = cut(few, part, parts), end = cut(few, part + 1, parts);
                        // Of the terms that come next, each part fetches 16 columns (40 rows: 6 % faster).
                        const Ahead next = turned && c + 1 < chunks && part * 16 < Micro::cols
                                               ? ahead_of<Isa>(b.from(j + t + part * 16, (c + 1) * depth))
                                               : nothing_ahead(panel);
                        for (int64_t u = 0; u < wide; u += Micro::cols) {
                            Micro::multiply(end - top, std::min<int64_t>(Micro::cols, wide - u), padded,
                                            rows + top * stride, stride, panel + u * Isa::group, row,
                                            sums + top * width + t + u, width, c > 0, next);
                        }
                    }
                }
            }
            to.put(sums, width, few, j, cols);
        }
    });
}

// Lines that share what is loaded of the few: 4, with up to 4 of these, are 16 sums in registers, while the
// next 4 are fetched. (bf16, 4096 x 4096, 4 rows: 1.5 ms, one line at a time 2.6.)
template <int Few> constexpr int lines_together = Few == 1 ? 1 : 4;

// sums[Few, Count] of the products of `Count` lines, whose terms are neighbours and which are `across` apart,
// and `Few` lines, packed `stride` apart. `Turned`: the many are rows of A, else columns of B.
template <class Isa, int Few, int Count, bool Turned, class Packed_few, class Elem>
void dots_of_words(const Packed_few* factors, int64_t stride, const Elem* lines, int64_t across,
                   typename Isa::Acc* sums, int64_t apart, int64_t k) {
    using Vec = typename Isa::Vec;
    using Packed_many = std::conditional_t<Turned, typename Isa::Packed_a, typename Isa::Packed_b>;
    using Pack = Packer<Isa, Elem, Packed_many, Turned ? 0 : Isa::flip_b>;
    // 8 sums in flight hide the latency. The same for every Count: so is the order of the sums.
    constexpr int chains = std::max(1, 8 / (Few * lines_together<Few>));
    constexpr int64_t block = Pack::block;
    Vec part[Few][Count][chains] = {};
    [[maybe_unused]] Vec added[Count] = {};
    if constexpr (Isa::tail && !Turned) {
        for (int f = 0; f < Few; ++f) {
            for (int j = 0; j < Count; ++j) {
                std::memcpy(&part[f][j][0], factors + (f + 1) * stride - Isa::group, sizeof(*sums));
            }
        }
    }
    const auto step = [&](int64_t p, int64_t terms, int chain) {
        typename Pack::Words words[Count];
#pragma GCC unroll 4
        for (int j = 0; j < Count; ++j) {
            words[j] = Pack::load(lines + j * across + p, terms);
            if constexpr (Isa::tail && Turned) added[j] = Isa::dot(words[j], Vec{} + Isa::flip_b, added[j]);
        }
#pragma GCC unroll 4
        for (int f = 0; f < Few; ++f) {
            typename Pack::Words other;
            std::memcpy(&other, factors + f * stride + p, sizeof other);
#pragma GCC unroll 4
            for (int j = 0; j < Count; ++j) {
                Vec& sum = part[f][j][chain];
                sum = Turned ? Isa::dot(words[j], other, sum) : Isa::dot(other, words[j], sum);
            }
        }
    };
    int64_t p = 0;
    for (; p + chains * block <= k; p += chains * block) {
#pragma GCC unroll 8
        for (int c = 0; c < chains; ++c) {
            if (Few > 1) {
#pragma GCC unroll 4
                for (int j = 0; j < Count; ++j) {
                    __builtin_prefetch(lines + (Count + j) * across + p + c * block, 0, 2);
                }
            }
            step(p + c * block, block, c);
        }
    }
    for (; p < k; p += block) step(p, k - p, 0);
    for (int f = 0; f < Few; ++f) {
        for (int j = 0; j < Count; ++j) {
            Vec& sum = part[f][j][0];
            for (int c = 1; c < chains; ++c) sum += part[f][j][c];
            if constexpr (Isa::tail && Turned) sum -= added[j];
            sums[f * apart + j] = sum_of_lanes<typename Isa::Acc>(sum);
        }
    }
}

// The same for any number of the few, 4, 2 or 1 at a time.
template <class Isa, int Count, bool Turned, class Packed_few, class Elem>
void dots_of_words(const Packed_few* factors, int64_t few, int64_t stride, const Elem* lines, int64_t across,
                   typename Isa::Acc* sums, int64_t apart, int64_t k) {
    for (int64_t f = 0; f < few; f += 4, factors += 4 * stride, sums += 4 * apart) {
        switch (few - f) {
            case 1:
                for (int j = 0; j < Count; ++j) {
                    dots_of_words<Isa, 1, 1, Turned>(factors, stride, lines + j * across, across, sums + j,
                                                     apart, k);
                }
                break;
            case 2: dots_of_words<Isa, 2, Count, Turned>(factors, stride, lines, across, sums, apart, k); break;
            default: dots_of_words<Isa, 4, Count, Turned>(factors, stride, lines, across, sums, apart, k);
        }
    }
}

// Dot products of `few` lines, packed in registers' width, with many whose terms are neighbours and are
// loaded straight into the instruction.
template <class Isa, bool Turned, class ElemF, class ElemM, class To>
void few_dots_of(const Lines<ElemF>& few_lines, int64_t few, const Lines<ElemM>& many, int64_t count,
                 int64_t k, const To& to) {
    using Acc = typename Isa::Acc;
    using Packed_few = std::conditional_t<Turned, typename Isa::Packed_b, typename Isa::Packed_a>;
    using Pack = Packer<Isa, ElemF, Packed_few, Turned ? Isa::flip_b : 0>;
    constexpr int64_t piece = 64;
    constexpr int together = lines_together<4>;
    const int64_t stride = (std::max<int64_t>(1, ceil_div(k, Pack::block)) + Isa::tail) * Pack::block;
    const int64_t held = few == 1 ? 1 : ceil_div(few, 2) * 2;  // one of zeros, not a kernel more
    Packed_few* packed = scratch<Packed_few>(held * stride);
    Pack::rows(few_lines, few, few, k, packed, stride);
    std::fill_n(packed + few * stride, (held - few) * stride, Packed_few{});
    const int64_t grain = ceil_div(work_per_thread, few * std::max<int64_t>(k, 1));
    opw::parallel_for(count, grain, [=](int64_t begin, int64_t end) {
        Acc sums[most_dots * piece];
        for (int64_t first = begin; first < end; first += piece) {
            const int64_t lines = std::min(piece, end - first);
            int64_t i = 0;
            for (; i + together <= lines; i += together) {
                dots_of_words<Isa, together, Turned>(packed, held, stride, many.from(first + i, 0).data,
                                                     many.across, sums + i, piece, k);
            }
            for (; i < lines; ++i) {
                dots_of_words<Isa, 1, Turned>(packed, held, stride, many.from(first + i, 0).data, 0, sums + i,
                                              piece, k);
            }
            to.put(sums, piece, few, first, lines);
        }
    });
}

// out = a * b where m or n is small and the larger operand lies as one of the two wants it; else false.
// `tiled`: products of more than 16 rows have faster instructions than these.
template <class Isa, class ElemA, class ElemB, class Out, class Epilogue>
bool thin_dot(const Lines<ElemA>& a, const Lines<ElemB>& b, Out* out, int64_t m, int64_t n, int64_t k,
              const Epilogue& epilogue, bool tiled) {
    const int64_t turned = few_turned_rows<typename Isa::Packed_b>(k), dots = tiled ? 16 : most_dots;
    const int64_t row = k * int64_t{sizeof(ElemA)}, col = k * int64_t{sizeof(ElemB)};
    const int64_t few = few_tile_rows(n * col), most = b.across != 1 && !tiled ? turned : few;
    if (m <= std::min(few_dot_rows(col, n * col), dots) && b.along == 1) {
        few_dots_of<Isa, false>(a, m, b, n, k, Thin_out<Out, Epilogue>{out, n, false, epilogue});
    } else if (n <= few_dot_cols(row) && a.along == 1) {
        few_dots_of<Isa, true>(b, n, a, m, k, Thin_out<Out, Epilogue>{out, n, true, epilogue});
    } else if (m <= most && (b.across == 1 || b.along == 1)) {
        few_rows_of_tiles<Isa>(a, m, b, n, k, Thin_out<Out, Epilogue>{out, n, false, epilogue});
    } else {
        return false;
    }
    return true;
}

}  // namespace gemm
