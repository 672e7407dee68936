// AMX: 8 tile registers of 16 rows of 64 bytes, and instructions that multiply two of them into a third:
// 16 x 16 sums of 32 (bf16) or 64 (int8) terms, in 16 cycles.
// Tiles read packed operands as vectors do: 16 rows of A at their stride, 16 rows of words of a panel.
#pragma once

#include <cstdint>
#include <type_traits>

#include "amx_tiles.h"
#include "micro_avx512_bf16.h"
#include "micro_avx512_vnni.h"
#include "micro_kernel.h"

namespace gemm {

// 2 x 2 tiles of sums, 2 of A and 2 of B: 4 multiplications (64 cycles) for 4 loads (32 cycles).
struct AmxTile {
    static constexpr int rows = 32;
    static constexpr int vectors = 2;
};

// `Thin` is the instruction set for products that would leave most of a tile empty.
struct AmxBf16 : Avx512Bf16 {
    using Thin = Avx512Bf16;
    static constexpr int rows = AmxTile::rows, step = 16 * group;

    template <int C, int A, int B> static void multiply_add() { amx::dot_bf16<C, A, B>(); }
};

template <class Elem_a>
struct AmxInt8 : Avx512<std::int32_t> {
    using Thin = Avx512Vnni<Elem_a>;
    using Packed_a = Elem_a;
    using Packed_b = std::int8_t;
    static constexpr int rows = AmxTile::rows, group = 4, step = 16 * group;

    template <int C, int A, int B> static void multiply_add() {
        if constexpr (std::is_signed_v<Elem_a>) {
            amx::dot_i8_i8<C, A, B>();
        } else {
            amx::dot_u8_i8<C, A, B>();
        }
    }
};

template <class Isa> class AmxTiles {
    using Acc = typename Isa::Acc;
    using Packed_a = typename Isa::Packed_a;
    using Packed_b = typename Isa::Packed_b;
    static constexpr int side = 16;  // rows of a tile, and words in a row

public:
    static constexpr int cols = side * AmxTile::vectors;

    // Tiles have a shape while one of these lives, and the thread is given back without: what runs on it
    // next may have its own use for them, and a thread that has none is cheaper to switch.
    class Session {
    public:
        Session() {
            amx::Configuration whole;
            for (int tile = 0; tile < 8; ++tile) {
                whole.row_bytes[tile] = 64;
                whole.rows[tile] = side;
            }
            amx::configure(whole);
        }
        ~Session() { amx::release(); }
        Session(const Session&) = delete;
        Session& operator=(const Session&) = delete;
    };

    // As micro_kernel(). Rows of `a` up to a multiple of 16 are read; they may hold anything.
    static void multiply(int64_t height, int64_t width, int64_t depth, const Packed_a* a, int64_t lda,
                         const Packed_b* b, int64_t ldb, Acc* c, int64_t ldc, bool add, const Ahead& next) {
        const bool low = height > side, right = width > side;
        const auto tiles = low ? (right ? &multiply_tiles<true, true> : &multiply_tiles<true, false>)
                               : (right ? &multiply_tiles<false, true> : &multiply_tiles<false, false>);
        tiles(height, width, depth, a, lda, b, ldb, c, ldc, add, next);
    }

private:
    // Sums are tiles 0 to 3, row by row; A's are 4 and 5, B's 6 and 7.
    template <bool Low, bool Right>
    static void multiply_tiles(int64_t height, int64_t width, int64_t depth, const Packed_a* a,
                               int64_t lda, const Packed_b* b, int64_t ldb, Acc* c, int64_t ldc,
                               bool add, const Ahead& next) {
        start<0>(height, width, c, ldc, add);
        if constexpr (Right) start<1>(height, width, c, ldc, add);
        if constexpr (Low) start<2>(height, width, c, ldc, add);
        if constexpr (Low && Right) start<3>(height, width, c, ldc, add);
        const int64_t a_bytes = lda * int64_t{sizeof(Packed_a)}, b_bytes = ldb * int64_t{sizeof(Packed_b)};
        for (int64_t p = 0; p < depth; p += Isa::step, a += Isa::step, b += side * ldb) {
            const char* const ahead = next.at + p / Isa::group * next.along;
            for (int64_t i = 0; i < (Low ? 2 * side : side); ++i) __builtin_prefetch(ahead + i * next.across);
            amx::load<6>(b, b_bytes);
            amx::load<4>(a, a_bytes);
            Isa::template multiply_add<0, 4, 6>();
            if constexpr (Right) {
                amx::load<7>(b + side * Isa::group, b_bytes);
                Isa::template multiply_add<1, 4, 7>();
            }
            if constexpr (Low) {
                amx::load<5>(a + side * lda, a_bytes);
                Isa::template multiply_add<2, 5, 6>();
            }
            if constexpr (Low && Right) Isa::template multiply_add<3, 5, 7>();
        }
        finish<0>(height, width, c, ldc, add);
        if constexpr (Right) finish<1>(height, width, c, ldc, add);
        if constexpr (Low) finish<2>(height, width, c, ldc, add);
        if constexpr (Low && Right) finish<3>(height, width, c, ldc, add);
    }

    // Where sum tile `Index` lies in the tile of C, and how much of it there is.
    template <int Index> struct Corner {
        static constexpr int row = Index / 2 * side, col = Index % 2 * side;

        static int64_t rows(int64_t height) { return height - row < side ? height - row : side; }
        static int64_t cols(int64_t width) { return width - col < side ? width - col : side; }
        static bool whole(int64_t height, int64_t width) {
            return rows(height) == side && cols(width) == side;
        }
    };

    template <int Index>
    static void start(int64_t height, int64_t width, const Acc* c, int64_t ldc, bool add) {
        using At = Corner<Index>;
        if (add && At::whole(height, width)) {
            amx::load<Index>(c + At::row * ldc + At::col, ldc * int64_t{sizeof(Acc)});
        } else {
            amx::zero<Index>();
        }
    }

    // A tile that is not whole goes to C by way of the stack.
    template <int Index>
    static void finish(int64_t height, int64_t width, Acc* c, int64_t ldc, bool add) {
        using At = Corner<Index>;
        c += At::row * ldc + At::col;
        if (At::whole(height, width)) return amx::store<Index>(c, ldc * int64_t{sizeof(Acc)});
        alignas(64) Acc sums[side * side];
        amx::store<Index>(sums, side * sizeof(Acc));
        const int count = static_cast<int>(At::cols(width));
        for (int64_t i = 0; i < At::rows(height); ++i, c += ldc) {
            const typename Isa::Vec row = Isa::load(sums + i * side);
            if (count == side) {
                Isa::store(c, add ? Isa::load(c) + row : row);
            } else {
                Isa::store_part(c, add ? Isa::load_part(c, count) + row : row, count);
            }
        }
    }
};

template <> class Tile<AmxBf16> : public AmxTiles<AmxBf16> {};
template <class Elem_a> class Tile<AmxInt8<Elem_a>> : public AmxTiles<AmxInt8<Elem_a>> {};

}  // namespace gemm
