// The tile operations of AMX that the micro-kernel uses, one instruction each. (g++ 12's own intrinsics
// do not say that configuring and loading read memory.) tests/ops/amx_model has the same in plain C++.
#pragma once

#include <cstdint>

namespace gemm::amx {

// Bytes of a row and rows of each tile, in the layout of LDTILECFG.
struct alignas(64) Configuration {
    std::uint8_t palette = 1, start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
};

inline void configure(const Configuration& configuration) {
    asm volatile("ldtilecfg %0" : : "m"(configuration) : "memory");
}
inline void release() { asm volatile("tilerelease" : : : "memory"); }

template <int Tile> void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(Tile));
}
// Rows are `stride` bytes apart.
template <int Tile> void load(const void* p, std::int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(Tile), "r"(p), "r"(stride) : "memory");
}
template <int Tile> void store(void* p, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(Tile), "r"(p), "r"(stride) : "memory");
}

// C += A * B. Words of A's rows are groups of terms; a row of B has a word for each column.
template <int C, int A, int B> void dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B> void dot_i8_i8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B> void dot_u8_i8() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

}  // namespace gemm::amx
