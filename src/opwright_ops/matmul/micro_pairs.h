// 8-bit integers where there is no dot product of bytes: widened to 16 bits while they are packed, since
// pmaddwd multiplies pairs of those and adds them into 32 bits exactly. (pmaddubsw, which takes bytes,
// saturates at 16 bits: 2 * 255 * 127 is more than that.) One class for each width of a register.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512BW__)
#include "micro_avx512.h"
#elif defined(__AVX2__)
#include "micro_avx2.h"
#else
#include "micro_portable.h"
#endif

namespace gemm {

// Sums wrap as the instructions do, so their type has no sign; they are stored as std::int32_t.
template <int Bytes> struct Pairs {
    using Acc = std::int32_t;
    using Packed_a = std::int16_t;
    using Packed_b = std::int16_t;
    using Narrow = void;
    using Vec = Vector<std::uint32_t, Bytes / 4>;
    static constexpr int lanes = Bytes / 4, group = 2, step = 2, tail = 0;
    static constexpr std::uint32_t flip_b = 0;

    static Vec load(const std::int32_t* p) { return words_at(p); }
    static void store(std::int32_t* p, Vec x) { std::memcpy(p, &x, sizeof x); }
    static Vec load_part(const std::int32_t* p, int count) {
        Vec x{};
#if defined(__AVX2__)
        const auto& at = *reinterpret_cast<const std::int32_t(*)[lanes]>(p);
        if constexpr (Bytes == 64) {
            asm("vmovdqu32 %1, %0%{%2%}%{z%}" : "=v"(x) : "m"(at), "Yk"(bits(count)));
        } else if (Vec lanes_left = mask(count); in_one_page(p, Bytes)) {
            asm("vpmaskmovd %1, %2, %0" : "=x"(x) : "m"(at), "x"(lanes_left));
        } else {
            asm("vpgatherdd %1, (%2,%3,4), %0"
                : "+&x"(x), "+&x"(lanes_left)
                : "r"(p), "x"(Vec{0, 1, 2, 3, 4, 5, 6, 7}), "m"(at));
        }
#else
        std::memcpy(&x, p, static_cast<std::size_t>(count) * sizeof *p);
#endif
        return x;
    }
    static void store_part(std::int32_t* p, Vec x, int count) {
#if defined(__AVX2__)
        auto& at = *reinterpret_cast<std::int32_t(*)[lanes]>(p);
        if constexpr (Bytes == 64) {
            asm("vmovdqu32 %1, %0%{%2%}" : "+m"(at) : "v"(x), "Yk"(bits(count)));
        } else {
            asm("vpmaskmovd %1, %2, %0" : "+m"(at) : "x"(x), "x"(mask(count)));
        }
#else
        std::memcpy(p, &x, static_cast<std::size_t>(count) * sizeof *p);
#endif
    }

    static Vec broadcast(const std::int16_t* pair) {
        std::uint32_t word;
        std::memcpy(&word, pair, sizeof word);
        return word - Vec{};
    }
    static Vec words(const std::int16_t* p) { return words_at(p); }
    static Vec dot(Vec x, Vec y, Vec z) {
#if defined(__AVX2__)
        Vec products;
        asm("vpmaddwd %2, %1, %0" : "=v"(products) : "v"(x), "v"(y));
        return z + products;
#elif defined(__SSE2__)
        asm("pmaddwd %1, %0" : "+x"(x) : "x"(y));
        return z + x;
#else
        using Signed = Vector<std::int32_t, lanes>;
        const auto odd_x = reinterpret_cast<Signed>(x), odd_y = reinterpret_cast<Signed>(y);
        const auto even_x = reinterpret_cast<Signed>(x << 16), even_y = reinterpret_cast<Signed>(y << 16);
        const Signed even = (even_x >> 16) * (even_y >> 16), odd = (odd_x >> 16) * (odd_y >> 16);
        return z + reinterpret_cast<Vec>(even) + reinterpret_cast<Vec>(odd);
#endif
    }

private:
    static std::uint16_t bits(int count) { return static_cast<std::uint16_t>((1u << count) - 1); }
    static Vec mask(int count) {
        std::int32_t each[lanes];
        for (int lane = 0; lane < lanes; ++lane) each[lane] = lane < count ? -1 : 0;
        return words_at(each);
    }
    static Vec words_at(const void* p) {
        Vec x;
        std::memcpy(&x, p, sizeof x);
        return x;
    }
};

#if defined(__AVX512BW__)
template <> struct Avx512<std::int32_t> : Pairs<64>, Avx512Tile {
    using Thin = Avx512;
};
#elif defined(__AVX2__)
template <> struct Avx2<std::int32_t> : Pairs<32>, Avx2Tile {
    using Thin = Avx2;
};
#else
template <> struct Portable<std::int32_t> : Pairs<16>, PortableTile {
    using Thin = Portable;
};
#endif

}  // namespace gemm
