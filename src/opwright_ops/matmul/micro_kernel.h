// The innermost product: a tile of C that lives in registers from the first multiply-add of a block to
// the last. Written once; an instruction set (micro_avx2.h, micro_avx512.h) gives it a class `Isa` with
//
//   Acc, Vec                the type of the sums, and a register full of them
//   lanes                   how many there are in a Vec
//   rows, vectors           the largest tile that the registers hold: `rows` x (`vectors` * `lanes`)
//   fma(x, y, z)            x * y + z, rounded once
//   load, store             one Vec at any address, converting from and to the element types
//   load_part, store_part   its first `count` lanes, 0 < count < lanes; the other lanes are 0, and
//                           the memory they stand for is not touched
#pragma once

#include <cstdint>
#include <cstring>

namespace gemm {

// C[rows, cols] = A[rows, depth] * B[depth, cols], plus C as it was where `add` is set.
// `a` has rows a fixed `AStride` apart; `b` is packed, `Vectors * lanes` to a row. `c` has rows `ldc`
// apart and `(Vectors - 1) * lanes + last` columns.
template <class Isa, int Rows, int Vectors, int AStride>
void micro_kernel(std::int64_t depth, const typename Isa::Acc* a, const typename Isa::Acc* b,
                  typename Isa::Acc* c, std::int64_t ldc, int last, bool add) {
    using Vec = typename Isa::Vec;
    constexpr int lanes = Isa::lanes;
    Vec sums[Rows][Vectors];
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) {
            sums[i][v] = Vec{};
            __builtin_prefetch(c + i * ldc + v * lanes, 1);
        }
    }
    for (std::int64_t p = 0; p < depth; ++p, ++a, b += Vectors * lanes) {
        Vec row[Vectors];
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) row[v] = Isa::load(b + v * lanes);
#pragma GCC unroll 16
        for (int i = 0; i < Rows; ++i) {
            const Vec factor = a[i * AStride] - Vec{};  // x - 0 is x, even for -0
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; ++v) sums[i][v] = Isa::fma(factor, row[v], sums[i][v]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i, c += ldc) {
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) {
            typename Isa::Acc* to = c + v * lanes;
            if (v < Vectors - 1 || last == lanes) {
                Isa::store(to, add ? Isa::load(to) + sums[i][v] : sums[i][v]);
            } else {
                Isa::store_part(to, add ? Isa::load_part(to, last) + sums[i][v] : sums[i][v], last);
            }
        }
    }
}

}  // namespace gemm
