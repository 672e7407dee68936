// Block sizes: what is known of caches, and nothing of algorithms or instruction sets.
#pragma once

#include <cstdint>

namespace gemm {

// `depth` is cut first: a row panel of A (12 x 1 KiB) fits in half of a 32 KiB L1.
// depth x `cols` is the packed part of B that stays in L2: 512 KiB, half of 1 MiB.
// `rows` bounds the sums that an output of another type needs beside it (rows x cols, 2 MiB, in L3), and
// is large enough that packing B again for the next rows costs less than 1 % of using it.
template <class Packed> struct Blocks {
    static constexpr std::int64_t depth = 1024 / sizeof(Packed), cols = 512, rows = 1024;
};
template <> struct Blocks<double> {
    static constexpr std::int64_t depth = 256, cols = 256, rows = 1024;
};

// Up to this many rows, or columns, copying an element of the other operand costs more than it saves.
constexpr std::int64_t few_rows = 8, few_cols = 2;

// An operand of up to so many bytes stays in L2 while it is used, packed or not.
constexpr std::int64_t direct_bytes = 128 << 10;

// Multiply-adds worth waking a thread for: about 20 us of work where waking takes 5.
constexpr std::int64_t work_per_thread = std::int64_t{1} << 20;

}  // namespace gemm
