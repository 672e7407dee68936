// What packing and kernels share: integer division, whole-array conversion, transposing registers, and
// the 16-bit floats.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace gemm {

using std::int64_t;

// A register of `Count` elements. (Of a type that a template names, g++ takes only a typedef.)
template <class Elem, int Count> struct Register {
    typedef Elem type __attribute__((vector_size(Count * sizeof(Elem))));
};
template <class Elem, int Count> using Vector = typename Register<Elem, Count>::type;

constexpr int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

// Lanes of the registers that `count` elements take.
template <class Isa> constexpr int64_t whole_vectors(int64_t count) {
    return ceil_div(count, Isa::lanes) * Isa::lanes;
}

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

// Lanes 0, 0, 1, 1, ... of x and y in turn, from the low half or the high one.
template <int High, class Words, int... I>
Words interleave(Words x, Words y, std::integer_sequence<int, I...>) {
    constexpr int lanes = sizeof...(I);
    return __builtin_shufflevector(x, y, (I / 2 + I % 2 * lanes + High * lanes / 2)...);
}

// One vector after the other.
template <class Half, int... I>
auto join(Half x, Half y, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(x, y, I...);
}
template <class Half> auto join(Half x, Half y) {
    return join(x, y, std::make_integer_sequence<int, 2 * sizeof(Half) / sizeof(x[0])>{});
}

// Of each 16 elements, a 4 x 4 matrix, the transpose.
template <class Words, int... I>
Words turn(Words x, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(x, x, (I / 16 * 16 + I % 4 * 4 + I / 4 % 4)...);
}

// Lanes `First`, `First + 1`, ...
template <int First, class Vec, int... I> auto lanes_from(Vec x, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(x, x, (First + I)...);
}

// The sum of all lanes, halves onto halves. (A loop over an array of them takes 5 times as long.)
template <class Acc, class Vec> Acc sum_of_lanes(Vec x) {
    constexpr int half = sizeof x / sizeof x[0] / 2;
    if constexpr (half == 1) {
        return static_cast<Acc>(x[0] + x[1]);
    } else {
        using Half = std::make_integer_sequence<int, half>;
        return sum_of_lanes<Acc>(lanes_from<0>(x, Half{}) + lanes_from<half>(x, Half{}));
    }
}

// As many registers as each has lanes. Interleaving register i with i + lanes / 2 moves the top bit of a
// register's number to the bottom of the lane's: after log2(lanes) rounds they have changed places.
template <int Lanes, class Words>
void transpose(Words (&words)[Lanes]) {
    using All = std::make_integer_sequence<int, Lanes>;
#pragma GCC unroll 4
    for (int round = 1; round < Lanes; round *= 2) {
        Words next[Lanes];
#pragma GCC unroll 8
        for (int i = 0; i < Lanes / 2; ++i) {
            next[2 * i] = interleave<0>(words[i], words[i + Lanes / 2], All{});
            next[2 * i + 1] = interleave<1>(words[i], words[i + Lanes / 2], All{});
        }
#pragma GCC unroll 16
        for (int i = 0; i < Lanes; ++i) words[i] = next[i];
    }
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
