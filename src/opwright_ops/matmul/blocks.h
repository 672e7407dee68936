// Block sizes: what is known of caches, and nothing of algorithms or instruction sets.
#pragma once

#include <cstdint>

// Tunables of matmul's rows; these are the values for kernels that have none.
#ifndef DEPTH_LINES
#define DEPTH_LINES 16
#endif
#ifndef COLS_64
#define COLS_64 16
#endif

namespace gemm {

// `depth` is cut first, `DEPTH_LINES` cache lines of packed terms: a row panel of A (12 x 1 KiB) fits in half
// of a 32 KiB L1. An even number, so that rows a line further apart spread over all sets of L1.
// depth x `cols` (`COLS_64` times 64) is the packed part of B that is read again for every row panel: 1 MiB,
// from L2, and from L3 where L2 is smaller. (Half as much has A packed twice as often: 4096 x 4096 x 32 in
// f32 takes 6 % longer, 2048^3 in bytes 3 %.)
// Of doubles, whose panels are half as wide, half as many columns of as many terms as floats have. Of bytes
// twice as many terms, where 12 rows of them leave room in L1: C is added to half as often, which counts where
// terms cost so little (2048^3: 3 %).
// `rows` bounds the sums that an output of another type needs beside it (rows x cols, 4 MiB, in L3), and
// is large enough that packing B again for the next rows costs less than 1 % of using it.
template <class Isa> struct Blocks {
    using Packed = typename Isa::Packed_b;
    static constexpr bool doubles = sizeof(Packed) == 8, bytes = sizeof(Packed) == 1 && Isa::rows <= 12;
    static constexpr std::int64_t depth = DEPTH_LINES * 64 / sizeof(Packed) * (doubles || bytes ? 2 : 1),
                                  cols = COLS_64 * (doubles ? 32 : 64), rows = 1024;
    static_assert(DEPTH_LINES % 2 == 0);
};

// Whether so many bytes come from memory every time.
constexpr bool from_memory(std::int64_t bytes) { return bytes > std::int64_t{8} << 20; }

// Up to this many rows, or columns, copying an element of the other operand costs more than it saves, where
// lines of the other are neighbours.
constexpr std::int64_t few_rows = 8, few_cols = 2;

// The same where its terms are: dot products of few lines with lines of `line` bytes. Of rows more where B
// comes from memory, as packing takes long to transpose it (columns of A need not be: 4096 x 32 x 4096 in bytes takes
// 2.8 ms packed, 3.4 not). Adding up the lanes of a register costs what is left of short lines. (B transposed,
// 4096 x 4096, packed and not: f32, 16 rows 9.7 and 6.3 ms, 32 rows 14.3 and 11.8; bf16, 8 rows 4.1 and 1.9, 32
// rows 7.7 and 6.0. In cache, 1000 x 1000 in f32: 8 rows 283 and 230 us, 16 rows 442 and 447. 4M elements of
// bf16, 4 rows: k = 128 0.60 and 0.47 ms, k = 64 0.65 and 0.80.)
constexpr std::int64_t most_dots = 32;
constexpr std::int64_t worth_dots(std::int64_t line, std::int64_t most) {
    const std::int64_t worth = line / 64;
    return worth < 1 ? 1 : worth < most ? worth : most;
}
constexpr std::int64_t few_dot_cols(std::int64_t row) { return worth_dots(row, 8); }
constexpr std::int64_t few_dot_rows(std::int64_t col, std::int64_t bytes) {
    return worth_dots(col, from_memory(bytes) ? most_dots : 8);
}

// Terms of B that are packed at a time, for all columns of a block: pieces of rows that are read whole, of
// few enough rows that lines which two panels share are still in L1.
template <class Packed> constexpr std::int64_t pack_terms = sizeof(Packed) == 1 ? 16 : 8;

// An operand of up to so many bytes stays in L2 while it is used, packed or not.
constexpr std::int64_t direct_bytes = 128 << 10;

// Multiply-adds worth waking a thread for: about 20 us of work where waking takes 5.
constexpr std::int64_t work_per_thread = std::int64_t{1} << 20;

}  // namespace gemm
