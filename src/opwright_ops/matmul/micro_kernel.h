// The innermost product: a tile of C that lives in registers from the first multiply-add of a block to
// the last. Written once; an instruction set (micro_portable.h, micro_avx512.h, ...) gives it a class
// `Isa` with
//
//   Acc, Vec                the type of the sums, and a register full of them
//   lanes                   how many there are in a Vec
//   rows, vectors           the largest tile that the registers hold: `rows` x (`vectors` * `lanes`)
//   fma(x, y, z)            x * y + z, rounded once where there is an instruction for it
//   load, store             one Vec at any address, converting from and to the element types
//   load_part, store_part   its first `count` lanes, 0 < count < lanes; the other lanes are 0, and
//                           the memory they stand for is not touched
//
// and, from `Widened<Acc>` where operands are widened to the type of the sums, else its own
//
//   Packed_a, Packed_b      what packed operands hold
//   group                   how many neighbouring terms an instruction multiplies and adds in one lane;
//                           group * sizeof(Packed) == sizeof(Acc)
//   step                    packed operands have zeros up to a multiple of this many terms
//   flip_b                  bits that packing flips in each word of B
//   tail                    1 where the last word of a row of packed A's stride is what its sums start from, to
//                           undo the flips; else 0
//   Narrow                  the same with registers half as wide, for tiles that need no more; or void
//
// and, where `group` is not 1, a register of words and what is done with it:
//
//   broadcast(a)            `group` terms of A in every lane
//   words(b)                `group` terms of each of `lanes` columns of packed B
//   dot(x, y, z)            z plus, in each lane, the sum of the products
//
// An instruction set that has more than vectors specialises `Tile`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "vectors.h"

namespace gemm {

// Whether `bytes` bytes from `p` lie in one page. Where they do not, AVX2's masked loads go lane by lane: a
// processor takes hundreds of cycles for one whose masked lanes may not be read, and QEMU 7.2 reads those
// all the same.
inline bool in_one_page(const void* p, std::size_t bytes) {
    return (reinterpret_cast<std::uintptr_t>(p) & 4095) + bytes <= 4096;
}

template <class Elem> struct Widened {
    using Packed_a = Elem;
    using Packed_b = Elem;
    using Narrow = void;
    static constexpr int group = 1, step = 1, tail = 0;
    static constexpr std::uint32_t flip_b = 0;
};

// Keeps a compiler from knowing a value: it neither rewrites an address (with three strides of A in registers,
// every fourth row's pointer reaches the next three, where one for each row would not leave enough) nor
// compiles a function once more for a constant.
template <class X> X opaque(X x) {
    asm("" : "+r"(x));
    return x;
}

// What is fetched into L1 meanwhile: lines of an operand that come next, `across` bytes apart, `along` bytes of
// each for every group of terms. (Fetched all at once while packing, they made it wait: 4096 x 32 x 4096 in f32
// took 15.2 ms, and 11.1 with one for every 24 multiply-adds.)
struct Ahead {
    const char* at;
    int64_t across, along;
};

// Nothing: what is fetched is in L1 already.
inline Ahead nothing_ahead(const void* used) { return {static_cast<const char*>(used), 0, 0}; }

// C[rows, cols] = A[rows, depth] * B[depth, cols], plus C as it was where `add` is set; `depth` is a
// multiple of `step`. Rows of `a` are `lda` apart, rows of words of `b` are `ldb`; `c` has rows `ldc` apart
// and `(Vectors - 1) * lanes + last` columns.
template <class Isa, int Rows, int Vectors>
void micro_kernel(int64_t depth, const typename Isa::Packed_a* a, int64_t lda,
                  const typename Isa::Packed_b* b, int64_t ldb, typename Isa::Acc* c, int64_t ldc,
                  int last, bool add, const Ahead& next) {
    using Vec = typename Isa::Vec;
    constexpr int lanes = Isa::lanes, group = Isa::group, fours = (Rows + 3) / 4;
    constexpr int turns = Rows > 8 ? 16 : Rows > 4 ? 8 : 4;  // rows that take turns
    Vec sums[Rows][Vectors];
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
        Vec start{};
        if constexpr (Isa::tail) start = Isa::broadcast(a + (i + 1) * lda - group);
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) sums[i][v] = start;
    }
    const int64_t strides[4] = {0, opaque(lda), 2 * opaque(lda), opaque(3 * lda)};
    const typename Isa::Packed_a* rows[fours];
#pragma GCC unroll 4
    for (int r = 0; r < fours; ++r) rows[r] = opaque(a + 4 * r * lda);
    const char* ahead = next.at;
    const int64_t across = next.across, along = next.along;
    int64_t turn = 0;
    for (const auto end = a + depth; rows[0] != end; b += ldb) {
        __builtin_prefetch(ahead + turn % turns * across);
        ahead += along;
        ++turn;
        if constexpr (group == 1) {
            Vec row[Vectors];
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; ++v) row[v] = Isa::load(b + v * lanes);
#pragma GCC unroll 16
            for (int i = 0; i < Rows; ++i) {
                const Vec factor = rows[i / 4][strides[i % 4]] - Vec{};  // x - 0 is x, even for -0
#pragma GCC unroll 4
                for (int v = 0; v < Vectors; ++v) sums[i][v] = Isa::fma(factor, row[v], sums[i][v]);
            }
        } else {
            decltype(Isa::words(b)) row[Vectors];
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; ++v) row[v] = Isa::words(b + v * lanes * group);
#pragma GCC unroll 16
            for (int i = 0; i < Rows; ++i) {
                const auto factor = Isa::broadcast(rows[i / 4] + strides[i % 4]);
#pragma GCC unroll 4
                for (int v = 0; v < Vectors; ++v) sums[i][v] = Isa::dot(factor, row[v], sums[i][v]);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < fours; ++r) rows[r] = opaque(rows[r] + group);
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

// Tiles of any size up to the largest: a micro-kernel for each height, so that no row is computed in
// vain, and for each number of vectors.
template <class Isa> class Tile {
    using Acc = typename Isa::Acc;
    using Packed_a = typename Isa::Packed_a;
    using Packed_b = typename Isa::Packed_b;
    using Kernel = void (*)(int64_t, const Packed_a*, int64_t, const Packed_b*, int64_t, Acc*, int64_t,
                            int, bool, const Ahead&);

public:
    static constexpr int cols = Isa::lanes * Isa::vectors;

    // What a thread needs around the calls: nothing.
    struct Session {};

    // As above, for 0 < height <= Isa::rows and 0 < width <= cols.
    static void multiply(int64_t height, int64_t width, int64_t depth, const Packed_a* a, int64_t lda,
                         const Packed_b* b, int64_t ldb, Acc* c, int64_t ldc, bool add, const Ahead& next) {
        if constexpr (narrows) {
            if (width <= Narrow::lanes && height > low) {
                narrow[height - low - 1](depth, a, lda, b, ldb, c, ldc, static_cast<int>(width), add,
                                            next);
                return;
            }
        }
        const int64_t vectors = ceil_div(width, Isa::lanes);
        const int last = static_cast<int>(width - (vectors - 1) * Isa::lanes);
        kernels[vectors - 1][height - 1](depth, a, lda, b, ldb, c, ldc, last, add, next);
    }

private:
    using Narrow = typename Isa::Narrow;
    using Heights = std::array<Kernel, Isa::rows>;
    static constexpr bool narrows = !std::is_void_v<Narrow>;

    using All_heights = std::make_integer_sequence<int, Isa::rows>;
    // Rows are cut into tiles more than half as high, but for few: those are not worth kernels of their own.
    static constexpr int low = Isa::rows / 2;
    using Narrow_heights = std::make_integer_sequence<int, Isa::rows - low>;

    template <class I, int Vectors, int Below = 0, int... Row>
    static constexpr std::array<Kernel, sizeof...(Row)> of_width(std::integer_sequence<int, Row...>) {
        return {{&micro_kernel<I, Below + Row + 1, Vectors>...}};
    }
    template <int... Width>
    static constexpr std::array<Heights, Isa::vectors> of_widths(std::integer_sequence<int, Width...>) {
        return {{of_width<Isa, Width + 1>(All_heights{})...}};
    }
    static constexpr auto kernels = of_widths(std::make_integer_sequence<int, Isa::vectors>{});
    static constexpr auto narrow = [] {
        if constexpr (narrows) {
            return of_width<Narrow, 1, low>(Narrow_heights{});
        } else {
            return nullptr;
        }
    }();
};

}  // namespace gemm
