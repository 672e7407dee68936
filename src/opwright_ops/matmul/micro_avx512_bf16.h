// AVX512-BF16: vdpbf16ps adds the products of two pairs of bfloat16 to each float, 32 multiply-adds an
// instruction where AVX-512 has 16. Subnormal numbers count as zero in it; it rounds to nearest even.
// Written as assembly: g++ and clang++, and their versions, give the built-in different types.
#pragma once

#include <cstdint>
#include <cstring>

#include "micro_avx512.h"
#include "opwright/types.h"

namespace gemm {

// 12 x 2 sums as for floats: an instruction waits 6 cycles for its sum, so 6 or more are in flight.
struct Avx512Bf16 : Avx512<float> {
    using Thin = Avx512Bf16;
    using Packed_a = opw::bf16;
    using Packed_b = opw::bf16;
    using Narrow = void;
    using Words = std::uint32_t __attribute__((vector_size(64)));
    static constexpr int group = 2, step = 2, tail = 0;

    static Words broadcast(const opw::bf16* pair) {
        Words x;
        asm("vpbroadcastd %1, %0" : "=v"(x) : "m"(*reinterpret_cast<const opw::bf16(*)[2]>(pair)));
        return x;
    }
    static Words words(const opw::bf16* p) {
        Words x;
        std::memcpy(&x, p, sizeof x);
        return x;
    }
    static Vec dot(Words x, Words y, Vec z) {
        asm("vdpbf16ps %2, %1, %0" : "+v"(z) : "v"(x), "v"(y));
        return z;
    }

    using Avx512<float>::store;
    static void store(opw::bf16* p, Vec x) {
        Half h;
        asm("vcvtneps2bf16 %1, %0" : "=v"(h) : "v"(x));
        std::memcpy(p, &h, sizeof h);
    }
};

}  // namespace gemm
