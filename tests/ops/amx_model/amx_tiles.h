// AMX's tile operations in plain C++, by the pseudocode of Intel's manual (volume 2: LDTILECFG, TILELOADD,
// TILESTORED, TILEZERO, TILERELEASE, TDPBF16PS, TDPBSSD, TDPBUSD). What raises #UD or #GP there ends the
// process here. Stands in for src/opwright_ops/matmul/amx_tiles.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gemm::amx {

struct alignas(64) Configuration {
    std::uint8_t palette = 1, start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
};

namespace model {

struct Tile {
    int rows = 0, row_bytes = 0;
    std::uint8_t data[16][64] = {};
};

inline thread_local bool configured = false;
inline thread_local Tile tiles[8];

inline void require(bool held, const char* what) {
    if (held) return;
    std::fprintf(stderr, "AMX model: %s\n", what);
    std::abort();
}

inline Tile& tile(int number) {
    require(configured, "a tile instruction without a configuration");
    require(tiles[number].rows > 0 && tiles[number].row_bytes > 0, "a tile without a shape");
    return tiles[number];
}

template <class Word> Word get(const std::uint8_t* row, int index) {
    Word x;
    std::memcpy(&x, row + index * sizeof x, sizeof x);
    return x;
}

// Subnormal numbers are zero, in and out.
inline float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
inline float from_bf16(std::uint16_t bits) {
    const std::uint32_t word = std::uint32_t{bits} << 16;
    float x;
    std::memcpy(&x, &word, sizeof x);
    return flushed(x);
}

inline void agree(const Tile& c, const Tile& a, const Tile& b) {
    require(&c != &a && &c != &b && &a != &b, "the same tile twice");
    require(c.rows == a.rows && b.row_bytes == c.row_bytes && a.row_bytes / 4 == b.rows,
            "shapes of tiles that do not agree");
}

template <class Byte_a> void dot_bytes(int c_number, int a_number, int b_number) {
    Tile& c = tile(c_number);
    const Tile &a = tile(a_number), &b = tile(b_number);
    agree(c, a, b);
    for (int m = 0; m < c.rows; ++m) {
        for (int k = 0; k < a.row_bytes / 4; ++k) {
            for (int n = 0; n < c.row_bytes / 4; ++n) {
                auto sum = get<std::uint32_t>(c.data[m], n);
                for (int i = 0; i < 4; ++i) {
                    const int product = int{get<Byte_a>(a.data[m], 4 * k + i)} *
                                        int{get<std::int8_t>(b.data[k], 4 * n + i)};
                    sum += static_cast<std::uint32_t>(product);
                }
                std::memcpy(c.data[m] + 4 * n, &sum, sizeof sum);
            }
        }
    }
}

}  // namespace model

// A configuration that is still there when the next begins is one that somebody left behind.
inline void configure(const Configuration& wanted) {
    using namespace model;
    require(!configured, "configured again without a release");
    require(wanted.palette == 1 && wanted.start_row == 0, "an unknown palette or start row");
    for (const std::uint8_t byte : wanted.reserved) require(byte == 0, "a reserved byte that is not 0");
    for (int i = 0; i < 16; ++i) {
        require(wanted.rows[i] <= 16 && wanted.row_bytes[i] <= 64, "a tile larger than 16 x 64 bytes");
        require(i < 8 || (wanted.rows[i] == 0 && wanted.row_bytes[i] == 0), "a ninth tile");
        require((wanted.rows[i] == 0) == (wanted.row_bytes[i] == 0), "a tile with one size of 0");
        if (i < 8) {
            tiles[i] = Tile{};
            tiles[i].rows = wanted.rows[i];
            tiles[i].row_bytes = wanted.row_bytes[i];
        }
    }
    configured = true;
}

inline void release() { model::configured = false; }

template <int Number> void zero() {
    model::Tile& tile = model::tile(Number);
    std::memset(tile.data, 0, sizeof tile.data);
}

template <int Number> void load(const void* p, std::int64_t stride) {
    model::Tile& tile = model::tile(Number);
    std::memset(tile.data, 0, sizeof tile.data);
    for (int i = 0; i < tile.rows; ++i) {
        std::memcpy(tile.data[i], static_cast<const std::uint8_t*>(p) + i * stride,
                    static_cast<std::size_t>(tile.row_bytes));
    }
}

template <int Number> void store(void* p, std::int64_t stride) {
    const model::Tile& tile = model::tile(Number);
    for (int i = 0; i < tile.rows; ++i) {
        std::memcpy(static_cast<std::uint8_t*>(p) + i * stride, tile.data[i],
                    static_cast<std::size_t>(tile.row_bytes));
    }
}

// Even and odd terms are summed apart, by fused multiply-adds that start at 0, and meet in the end.
template <int C, int A, int B> void dot_bf16() {
    using namespace model;
    Tile& c = tile(C);
    const Tile &a = tile(A), &b = tile(B);
    agree(c, a, b);
    for (int m = 0; m < c.rows; ++m) {
        for (int n = 0; n < c.row_bytes / 4; ++n) {
            float even = 0, odd = 0;
            for (int k = 0; k < a.row_bytes / 4; ++k) {
                const auto term = [&](int i) { return from_bf16(get<std::uint16_t>(a.data[m], 2 * k + i)); };
                const auto other = [&](int i) { return from_bf16(get<std::uint16_t>(b.data[k], 2 * n + i)); };
                even = flushed(std::fma(term(0), other(0), even));
                odd = flushed(std::fma(term(1), other(1), odd));
            }
            const float sum = flushed(flushed(get<float>(c.data[m], n)) + flushed(even + odd));
            std::memcpy(c.data[m] + 4 * n, &sum, sizeof sum);
        }
    }
}
template <int C, int A, int B> void dot_i8_i8() { model::dot_bytes<std::int8_t>(C, A, B); }
template <int C, int A, int B> void dot_u8_i8() { model::dot_bytes<std::uint8_t>(C, A, B); }

}  // namespace gemm::amx
