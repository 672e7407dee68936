// Packing: elements laid out in the order in which the micro-kernel reads them, whatever their strides.
//
// Packed A is row by row, terms side by side. Packed B is column panels: `group` terms of each column
// side by side, so that a register holds a *word* of `group` terms for each of its lanes.
// Both are made of the same step, a block of `lanes` words: either it can be loaded as it is wanted, or
// its transpose can, and is transposed in registers (4 shuffles a register for 16 lanes).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "vectors.h"

namespace gemm {

// A matrix as it lies in memory: strides in elements, none negative.
template <class Elem> struct Operand {
    const Elem* data;
    int64_t row_stride, col_stride;
};

template <class Elem>
Operand<Elem> contiguous(const Elem* data, int64_t cols) {
    return {data, cols, 1};
}

// The same seen from the sums: the lines (rows of A, columns of B) whose terms are multiplied. `along`
// is the stride from term to term, `across` that from line to line.
template <class Elem> struct Lines {
    const Elem* data;
    int64_t along, across;

    Lines from(int64_t line, int64_t term) const {
        return {data + line * across + term * along, along, across};
    }
};

template <class Elem> Lines<Elem> rows_of(const Operand<Elem>& a) {
    return {a.data, a.col_stride, a.row_stride};
}
template <class Elem> Lines<Elem> cols_of(const Operand<Elem>& b) {
    return {b.data, b.row_stride, b.col_stride};
}

// Elem is what the operand holds, Packed what the micro-kernel reads; bits set in `Flip` are flipped in
// every word.
template <class Isa, class Elem, class Packed, std::uint32_t Flip = 0> class Packer {
    static constexpr int lanes = Isa::lanes, group = Isa::group;
    static constexpr int word_bytes = group * sizeof(Packed);
    using Word = std::conditional_t<word_bytes == 8, std::uint64_t, std::uint32_t>;
    using Words = Vector<Word, lanes>;
    static_assert(word_bytes == sizeof(Word) && sizeof(Words) == sizeof(typename Isa::Vec));

public:
    static constexpr int block = lanes * group;  // terms in as many words as there are lanes

    // `height` lines of `depth` terms, rows `stride` apart in `to`, which is written up to the next
    // multiple of `block`, with zeros behind the terms. As many as `there` lines may be read.
    static void rows(Lines<Elem> lines, int64_t height, int64_t there, int64_t depth, Packed* to,
                     int64_t stride) {
        if (lines.along == 1) {
            for (int64_t i = 0; i < height; ++i) {
                const Elem* from = lines.data + i * lines.across;
                for (int64_t p = 0; p < depth; p += block) {
                    store(to + i * stride + p, load(from + p, std::min<int64_t>(block, depth - p)));
                }
            }
            return;
        }
        for (int64_t i = 0; i < height; i += lanes) {
            for (int64_t p = 0; p < depth; p += block) {
                Words words[lanes];
                gather(lines.from(i, p), there - i, depth - p, words);
                transpose(words);
                const int64_t count = std::min<int64_t>(lanes, height - i);
                for (int64_t line = 0; line < count; ++line) {
                    store(to + (i + line) * stride + p, words[line]);
                }
            }
        }
    }

    // A panel of `width` lines and `depth` terms, with zeros behind both: as many whole vectors a row
    // as the lines need, and terms up to the next multiple of Isa::step.
    static void panel(Lines<Elem> lines, int64_t width, int64_t depth, Packed* to) {
        const int64_t vectors = ceil_div(width, lanes), row = vectors * block;
        const int64_t groups = ceil_div(depth, Isa::step) * (Isa::step / group);
        if (lines.along == 1 && lines.across != 1) {
            for (int64_t v = 0; v < vectors; ++v) {
                for (int64_t q = 0; q < groups; q += lanes) {
                    Words words[lanes];
                    gather_turned(lines.from(v * lanes, q * group), width - v * lanes,
                                  depth - q * group, words);
                    transpose(words);
                    const int64_t count = std::min<int64_t>(lanes, groups - q);
                    for (int64_t i = 0; i < count; ++i) {
                        store(to + (q + i) * row + v * block, words[i]);
                    }
                }
            }
            return;
        }
        const int64_t whole = lines.across == 1 ? width / lanes : 0;
        for (int64_t q = 0; q < groups; ++q, to += row) {
            const Lines<Elem> at = lines.from(0, q * group);
            const int64_t terms = std::min<int64_t>(group, depth - q * group);
            int64_t v = 0;
            if (terms == group) {
#pragma GCC unroll 4
                for (; v < whole; ++v) store(to + v * block, zip(at.data + v * lanes, at.along));
            }
            for (; v < vectors; ++v) {
                store(to + v * block, zip_part(at.from(v * lanes, 0), width - v * lanes, terms));
            }
        }
    }

private:
    static void store(Packed* to, Words words) { std::memcpy(to, &words, sizeof words); }

    // The words of one line: `block` terms next to each other.
    static Words load(const Elem* from) {
        if constexpr (sizeof(Elem) == sizeof(Packed)) {
            Words words;
            std::memcpy(&words, from, sizeof words);
            return words ^ Flip;
        } else if constexpr (group == 1) {
            return reinterpret_cast<Words>(Isa::load(from));
        } else {
            using Elems = Vector<Elem, block>;
            using Wide = Vector<Packed, block>;
            Elems elems;
            std::memcpy(&elems, from, sizeof elems);
            return reinterpret_cast<Words>(__builtin_convertvector(elems, Wide)) ^ Flip;
        }
    }

    // Its first `count` terms, and zeros behind them.
    static Words load(const Elem* from, int64_t count) {
        if (count >= block) return load(from);
        Elem terms[block] = {};
        for (int64_t t = 0; t < count; ++t) terms[t] = from[t];
        return load(terms);
    }

    // A word of each of `lanes` neighbouring lines whose terms are `along` apart.
    static Words zip(const Elem* from, int64_t along) {
        if constexpr (group == 1) {
            return load(from);
        } else {
            constexpr int bits = 8 * sizeof(Packed);
            using Bits = std::conditional_t<sizeof(Elem) == 1, std::uint8_t, std::uint16_t>;
            // Widening an integer keeps its sign; what is as wide as Packed is only moved.
            using From = std::conditional_t<sizeof(Elem) == sizeof(Packed), Bits, Elem>;
            using Elems = Vector<From, lanes>;
            Words words{};
#pragma GCC unroll 4
            for (int g = 0; g < group; ++g, from += along) {
                Elems elems;
                std::memcpy(&elems, from, sizeof elems);
                const Words wide = __builtin_convertvector(elems, Words);
                words |= (wide & ((Word{1} << bits) - 1)) << (g * bits);
            }
            return words ^ Flip;
        }
    }

    // The same for lines at any stride, `lines` of them and `terms` terms (more are left out).
    static Words zip_part(Lines<Elem> at, int64_t lines, int64_t terms) {
        Elem elems[group * lanes] = {};
        const int64_t count = std::min<int64_t>(lanes, lines);
        for (int64_t t = 0; t < std::min<int64_t>(group, terms); ++t) {
            for (int64_t i = 0; i < count; ++i) elems[t * lanes + i] = *at.from(i, t).data;
        }
        return zip(elems, lanes);
    }

    // words[q] = word q of each line.
    static void gather(Lines<Elem> at, int64_t lines, int64_t terms, Words (&words)[lanes]) {
        if (at.across == 1 && lines >= lanes && terms >= block) {
            for (int q = 0; q < lanes; ++q) words[q] = zip(at.from(0, q * group).data, at.along);
            return;
        }
        for (int q = 0; q < lanes; ++q) {
            words[q] = zip_part(at.from(0, q * group), lines, terms - q * group);
        }
    }

    // words[i] = the words of line i, whose terms are neighbours.
    static void gather_turned(Lines<Elem> at, int64_t lines, int64_t terms, Words (&words)[lanes]) {
        for (int64_t i = 0; i < lanes; ++i) {
            words[i] = i < lines ? load(at.from(i, 0).data, terms) : Words{} ^ Flip;
        }
    }
};

}  // namespace gemm
