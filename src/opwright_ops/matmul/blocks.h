// Block sizes: what is known of caches, and nothing of algorithms or instruction sets.
#pragma once

#include <cstdint>

namespace gemm {

// `depth` is cut first: a row panel of A (12 x 256 floats, 12 KiB) fits in half of a 32 KiB L1.
// depth x `cols` is the packed part of B that stays in L2: 512 KiB, half of 1 MiB.
// `rows` bounds the float sums that 16-bit outputs need beside them (rows x cols, 2 MiB, in L3), and
// is large enough that packing B again for the next rows costs less than 1 % of using it.
template <class Acc> struct Blocks;
template <> struct Blocks<float> {
    static constexpr std::int64_t depth = 256, cols = 512, rows = 1024;
};
template <> struct Blocks<double> {
    static constexpr std::int64_t depth = 256, cols = 256, rows = 1024;
};

// Up to this many rows, copying an element of B costs more than it saves.
constexpr std::int64_t few = 8;

// Multiply-adds worth waking a thread for: about 20 us of work where waking takes 5.
constexpr std::int64_t work_per_thread = std::int64_t{1} << 20;

}  // namespace gemm
