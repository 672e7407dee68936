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

// Up to this many rows, or columns, copying an element of the other operand costs more than it saves.
constexpr std::int64_t few_rows = 8, few_cols = 2;

// Terms of B that are packed at a time, for all columns of a block: pieces of rows that are read whole, of
// few enough rows that lines which two panels share are still in L1.
template <class Packed> constexpr std::int64_t pack_terms = sizeof(Packed) == 1 ? 16 : 8;

// An operand of up to so many bytes stays in L2 while it is used, packed or not.
constexpr std::int64_t direct_bytes = 128 << 10;

// Multiply-adds worth waking a thread for: about 20 us of work where waking takes 5.
constexpr std::int64_t work_per_thread = std::int64_t{1} << 20;

}  // namespace gemm
