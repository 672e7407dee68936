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

#include "micro_kernel.h"
#include "vectors.h"

namespace gemm {

// A matrix as it lies in memory: strides in elements, none negative.
template <class Elem> struct Operand {
    using Element = Elem;
    const Elem* data;
    int64_t row_stride, col_stride;
};

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

// What comes next of the operand, from where these lines begin.
template <class Isa, class Elem> Ahead ahead_of(const Lines<Elem>& lines) {
    constexpr int64_t size = sizeof(Elem);
    return {reinterpret_cast<const char*>(lines.data), lines.across * size, lines.along * size * Isa::group};
}

// Elem is what the operand holds, Packed what the micro-kernel reads; bits set in `Flip` are flipped in
// every word.
template <class Isa, class Elem, class Packed, std::uint32_t Flip = 0> class Packer {
    static constexpr int lanes = Isa::lanes, group = Isa::group;
    static constexpr int word_bytes = group * sizeof(Packed);
    using Word = std::conditional_t<word_bytes == 8, std::uint64_t, std::uint32_t>;
    // Whether an instruction loads a part of a register as it is wanted.
#if defined(__AVX512BW__)
    static constexpr bool masks = group > 1 || std::is_same_v<Elem, typename Isa::Acc>;
#else
    static constexpr bool masks = group == 1 && std::is_same_v<Elem, typename Isa::Acc>;
#endif

public:
    using Words = Vector<Word, lanes>;
    static_assert(word_bytes == sizeof(Word) && sizeof(Words) == sizeof(typename Isa::Vec));

    static constexpr int block = lanes * group;  // terms in as many words as there are lanes

    // `height` lines of `depth` terms, rows `stride` apart in `to`, which is written up to the next
    // multiple of `block`, with zeros behind the terms. As many as `there` lines may be read. With
    // Isa::tail, the last word of a row of A is what flipping B adds to its sums, negated.
    __attribute__((noinline)) static void rows(Lines<Elem> lines, int64_t height, int64_t there,
                                               int64_t depth, Packed* to, int64_t stride) {
        if (lines.along == 1) {
            for (int64_t i = 0; i < height; ++i) {
                const Elem* from = lines.data + i * lines.across;
                Added added{};
                for (int64_t p = 0; p < depth; p += block) {
                    const Words words = load(from + p, std::min<int64_t>(block, depth - p));
                    store(to + i * stride + p, words);
                    added = add_flips(words, added);
                }
                store_tail(to + (i + 1) * stride - group, added);
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
            for (int64_t line = i; has_tails && line < std::min(i + lanes, height); ++line) {
                Added added{};
                for (int64_t p = 0; p < depth; p += block) {
                    added = add_flips(words_at(to + line * stride + p), added);
                }
                store_tail(to + (line + 1) * stride - group, added);
            }
        }
    }

    // A panel of `width` lines, with zeros behind and, where there are more terms to come, without: as many
    // whole vectors a row as the lines need, and terms up to the next multiple of Isa::step.
    static void panel(Lines<Elem> lines, int64_t width, int64_t depth, Packed* to) {
        const int64_t vectors = ceil_div(width, lanes), row = vectors * block;
        const int64_t groups = ceil_div(depth, Isa::step) * (Isa::step / group);
        if (lines.along == 1 && lines.across != 1) return panel_turned(lines, width, depth, to);
        const int64_t whole = lines.across == 1 && depth >= group ? width / lanes : 0;
        const int64_t full = depth / group;  // rows of words that have all their terms
        for (int64_t q = 0; q < (whole > 0 ? full : 0); ++q) {
            const Elem* const from = lines.from(0, q * group).data;
#pragma GCC unroll 4
            for (int64_t v = 0; v < whole; ++v) {
                store(to + q * row + v * block, zip(from + v * lanes, lines.along));
            }
        }
        for (int64_t v = 0; v < vectors; ++v) {
            for (int64_t q = v < whole ? full : 0; q < groups; ++q) {
                store(to + q * row + v * block,
                      zip_part(lines.from(v * lanes, q * group), width - v * lanes, depth - q * group));
            }
        }
    }

    // The words of one line: `block` terms next to each other.
    static Words load(const Elem* from) {
        if constexpr (sizeof(Elem) == sizeof(Packed)) {
            return words_at(from) ^ Flip;
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
        if constexpr (masks && group == 1) {
            return reinterpret_cast<Words>(Isa::load_part(from, static_cast<int>(count)));
        } else if constexpr (masks && sizeof(Elem) == sizeof(Packed)) {
            return load_terms(from, count);
        }
        Elem terms[block] = {};
        for (int64_t t = 0; t < count; ++t) terms[t] = from[t];
        return load(terms);
    }

private:
    using Added = typename Isa::Vec;
    static constexpr bool has_tails = Isa::tail && Flip == 0;

    static Added add_flips(Words words, Added added) {
        if constexpr (has_tails) return Isa::dot(words, Words{} + Isa::flip_b, added);
        return added;
    }
    static void store_tail(Packed* to, [[maybe_unused]] Added added) {
        if constexpr (has_tails) {
            const Word tail = -sum_of_lanes<Word>(added);
            std::memcpy(to, &tail, sizeof tail);
        }
    }

    // Not inlined: it is long, and the other way, which is short, is.
    __attribute__((noinline)) static void panel_turned(Lines<Elem> lines, int64_t width, int64_t depth,
                                                       Packed* to) {
        const int64_t vectors = ceil_div(width, lanes), row = vectors * block;
        const int64_t groups = ceil_div(depth, Isa::step) * (Isa::step / group);
        for (int64_t v = 0; v < vectors; ++v) {
            for (int64_t q = 0; q < groups; q += lanes) {
                Words words[lanes];
                gather_turned(lines.from(v * lanes, q * group), width - v * lanes, depth - q * group,
                              words);
                transpose(words);
                const int64_t count = std::min<int64_t>(lanes, groups - q);
                for (int64_t i = 0; i < count; ++i) store(to + (q + i) * row + v * block, words[i]);
            }
        }
    }

    static Words words_at(const void* from) {
        Words words;
        std::memcpy(&words, from, sizeof words);
        return words;
    }
    static void store(Packed* to, Words words) { std::memcpy(to, &words, sizeof words); }

    // A word of each of `lanes` neighbouring lines whose terms are `along` apart.
    static Words zip(const Elem* from, int64_t along) {
        if constexpr (group == 1) {
            return load(from);
        } else if constexpr (group == 4 && sizeof(Elem) == 1 && lanes == 16) {
            // The terms' rows as the rows of a 4 x 4 matrix of words, transposed, and then the bytes of each
            // four words: 5 shuffles where widening each to a word takes 10 instructions.
            Vector<std::uint8_t, lanes> rows[4];
#pragma GCC unroll 4
            for (int g = 0; g < 4; ++g) std::memcpy(&rows[g], from + g * along, sizeof rows[g]);
            const auto all = join(join(rows[0], rows[1]), join(rows[2], rows[3]));
            const auto turned =
                turn(reinterpret_cast<Words>(all), std::make_integer_sequence<int, lanes>{});
            const auto bytes = turn(reinterpret_cast<Vector<std::uint8_t, 4 * lanes>>(turned),
                                    std::make_integer_sequence<int, 4 * lanes>{});
            return reinterpret_cast<Words>(bytes) ^ Flip;
        } else {
            Words words = first(widen(from));
#pragma GCC unroll 4
            for (int g = 1; g < group; ++g) words |= widen(from + g * along) << (g * bits);
            return words ^ Flip;
        }
    }

    // The same for lines at any stride, `lines` of them and `terms` terms (more are left out).
    static Words zip_part(Lines<Elem> at, int64_t lines, int64_t terms) {
        const int64_t count = std::min<int64_t>(lanes, lines);
        terms = std::min<int64_t>(group, terms);
        if constexpr (masks) {
            if (at.across == 1 && terms > 0) {
                if constexpr (group == 1) {
                    return load(at.data, lines);
                } else {
                    Words words = first(widen(at.data, count));
                    for (int64_t g = 1; g < terms; ++g) {
                        words |= widen(at.data + g * at.along, count) << (g * bits);
                    }
                    return words ^ Flip;
                }
            }
        }
        Elem elems[group * lanes] = {};
        for (int64_t t = 0; t < terms; ++t) {
            for (int64_t i = 0; i < count; ++i) elems[t * lanes + i] = *at.from(i, t).data;
        }
        return zip(elems, lanes);
    }

    static constexpr int bits = 8 * sizeof(Packed);
    static constexpr bool keeps_sign = std::is_signed_v<Elem> && sizeof(Elem) < sizeof(Packed);

    // A first term that was widened with its sign must not reach into the second.
    static Words first(Words terms) { return keeps_sign ? terms & ((Word{1} << bits) - 1) : terms; }

    // One element to a word. (Of __builtin_convertvector g++ 12 makes 5 times as many instructions.)
    static Words widen(const Elem* from) {
        Words words;
#if defined(__AVX2__)
        const auto& at = *reinterpret_cast<const Elem(*)[lanes]>(from);
        if constexpr (sizeof(Elem) == 2) {
            asm("vpmovzxwd %1, %0" : "=v"(words) : "m"(at));
        } else if constexpr (keeps_sign) {
            asm("vpmovsxbd %1, %0" : "=v"(words) : "m"(at));
        } else {
            asm("vpmovzxbd %1, %0" : "=v"(words) : "m"(at));
        }
#else
        using Bits = std::conditional_t<sizeof(Elem) == 1, std::uint8_t, std::uint16_t>;
        using From = std::conditional_t<keeps_sign, Elem, Bits>;
        Word each[lanes];
        for (int i = 0; i < lanes; ++i) {
            From element;
            std::memcpy(&element, from + i, sizeof element);
            each[i] = static_cast<Word>(element);
        }
        std::memcpy(&words, each, sizeof words);
#endif
        return words;
    }

#if defined(__AVX512BW__)
    // The first `count` of them; the others are 0, and are not read.
    static Words widen(const Elem* from, int64_t count) {
        Words words;
        const auto& at = *reinterpret_cast<const Elem(*)[lanes]>(from);
        const auto mask = static_cast<std::uint16_t>((1u << count) - 1);
        if constexpr (sizeof(Elem) == 2) {
            asm("vpmovzxwd %1, %0%{%2%}%{z%}" : "=v"(words) : "m"(at), "Yk"(mask));
        } else if constexpr (keeps_sign) {
            asm("vpmovsxbd %1, %0%{%2%}%{z%}" : "=v"(words) : "m"(at), "Yk"(mask));
        } else {
            asm("vpmovzxbd %1, %0%{%2%}%{z%}" : "=v"(words) : "m"(at), "Yk"(mask));
        }
        return words;
    }

    // The first `count` terms of one line, of as many bytes as Packed.
    static Words load_terms(const Elem* from, int64_t count) {
        Words words;
        const auto& at = *reinterpret_cast<const Elem(*)[block]>(from);
        if constexpr (sizeof(Elem) == 2) {
            const auto mask = static_cast<std::uint32_t>((std::uint64_t{1} << count) - 1);
            asm("vmovdqu16 %1, %0%{%2%}%{z%}" : "=v"(words) : "m"(at), "Yk"(mask));
        } else {
            const auto mask = (std::uint64_t{1} << count) - 1;
            asm("vmovdqu8 %1, %0%{%2%}%{z%}" : "=v"(words) : "m"(at), "Yk"(mask));
        }
        return words ^ Flip;
    }
#endif

    // words[q] = word q of each line.
    static void gather(Lines<Elem> at, int64_t lines, int64_t terms, Words (&words)[lanes]) {
        if (at.across == 1 && lines >= lanes && terms >= block) {
            for (int q = 0; q < lanes; ++q) words[q] = zip(at.from(0, q * group).data, at.along);
            return;
        }
#pragma GCC unroll 1
        for (int q = 0; q < lanes; ++q) {
            words[q] = zip_part(at.from(0, q * group), lines, terms - q * group);
        }
    }

    // words[i] = the words of line i, whose terms are neighbours.
    static void gather_turned(Lines<Elem> at, int64_t lines, int64_t terms, Words (&words)[lanes]) {
        if (lines >= lanes && terms >= block) {
            for (int64_t i = 0; i < lanes; ++i) words[i] = load(at.from(i, 0).data);
            return;
        }
#pragma GCC unroll 1
        for (int64_t i = 0; i < lanes; ++i) {
            words[i] = i < lines ? load(at.from(i, 0).data, terms) : Words{} ^ Flip;
        }
    }
};

}  // namespace gemm
