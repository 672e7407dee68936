// AVX512-VNNI: vpdpbusd adds four products of an unsigned and a signed byte to each 32-bit sum, 64
// multiply-adds an instruction. Exact: products are summed in 32 bits, and the sum wraps (its sibling
// vpdpbusds, which saturates, is never used).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "micro_pairs.h"

namespace gemm {

// One operand has no sign. Where both have, B is packed with the top bits of its elements flipped, which adds
// 128 to each; what that adds to the sums, 128 times the sums of A's rows, each row of packed A has behind it
// (`tail`), negated, where the sums start. (Where packing counts, A has fewer rows than B has columns.)
template <class Elem_a>
struct Avx512Vnni : Avx512<std::int32_t> {
    using Thin = Avx512Vnni;
    using Packed_a = Elem_a;
    using Packed_b = std::int8_t;
    static constexpr int group = 4, step = 4, tail = std::is_signed_v<Elem_a>;
    static constexpr std::uint32_t flip_b = tail ? 0x80808080u : 0;

    static Vec broadcast(const Elem_a* quad) {
        Vec x;
        asm("vpbroadcastd %1, %0" : "=v"(x) : "m"(*reinterpret_cast<const Elem_a(*)[4]>(quad)));
        return x;
    }
    static Vec words(const std::int8_t* p) {
        Vec x;
        std::memcpy(&x, p, sizeof x);
        return x;
    }
    static Vec dot(Vec x, Vec y, Vec z) {
        if constexpr (tail) {
            asm("vpdpbusd %1, %2, %0" : "+v"(z) : "v"(x), "v"(y));
        } else {
            asm("vpdpbusd %2, %1, %0" : "+v"(z) : "v"(x), "v"(y));
        }
        return z;
    }
};

}  // namespace gemm
