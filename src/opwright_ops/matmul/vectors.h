// What packing and kernels share: integer division, whole-array conversion, and the 16-bit floats.
#pragma once

#include <cstdint>

namespace gemm {

using std::int64_t;

constexpr int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

// Where part `index` begins when `size` is cut into `parts` that differ by 1 at most.
constexpr int64_t cut(int64_t size, int64_t index, int64_t parts) {
    return size / parts * index + size % parts * index / parts;
}

// Copies `count` elements, through the type of the sums.
template <class Isa, class From, class To>
void convert(const From* from, To* to, int64_t count) {
    int64_t i = 0;
    for (; i + Isa::lanes <= count; i += Isa::lanes) Isa::store(to + i, Isa::load(from + i));
    for (; i < count; ++i) to[i] = static_cast<To>(static_cast<typename Isa::Acc>(from[i]));
}

// bfloat16, for any number of lanes: `Half`, `Word` and `Vec` are vectors of as many uint16_t,
// uint32_t and float.
template <class Vec, class Word, class Half>
Vec widen_bf16(Half h) {
    return reinterpret_cast<Vec>(__builtin_convertvector(h, Word) << 16);
}

// To nearest, ties to even; NaN stays NaN.
template <class Half, class Word, class Vec>
Half narrow_bf16(Vec x) {
    const Word u = reinterpret_cast<Word>(x);
    const Word rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
    const Word quiet_nan = (u >> 16) | 0x40u;
    return __builtin_convertvector((u & 0x7FFFFFFFu) > 0x7F800000u ? quiet_nan : rounded, Half);
}

}  // namespace gemm
