// 8-bit integers where there is no dot product of bytes: widened to 16 bits while they are packed, since
// pmaddwd multiplies pairs of those and adds them into 32 bits exactly. (pmaddubsw, which takes bytes,
// saturates at 16 bits: 2 * 255 * 127 is more than that.) One class for each width of a register.
#pragma once

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
    using Vec = Vector<std::uint32_t, Bytes / 4>;
    static constexpr int lanes = Bytes / 4, group = 2, step = 2, head = 0;
    static constexpr std::uint32_t flip_a = 0;

    static Vec load(const std::int32_t* p) { return words_at(p); }
    static void store(std::int32_t* p, Vec x) { std::memcpy(p, &x, sizeof x); }
    static Vec load_part(const std::int32_t* p, int count) {
        std::int32_t part[lanes] = {};
        for (int i = 0; i < count; ++i) part[i] = p[i];
        return words_at(part);
    }
    static void store_part(std::int32_t* p, Vec x, int count) {
        std::int32_t part[lanes];
        std::memcpy(part, &x, sizeof x);
        for (int i = 0; i < count; ++i) p[i] = part[i];
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
