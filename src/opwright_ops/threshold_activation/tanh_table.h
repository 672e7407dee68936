// The activation with tanh looked up: 32 quartics whose coefficients stay in registers, ten of the
// 32 zmm. One vpermi2ps picks 16 coefficients out of 32 (1 a cycle on Zen 4), so that 16 results
// cost 5 of those, 4 fma and no division.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "opwright/types.h"
#include "tanh_coefficients.h"
#include "tanh_exp.h"

namespace by_table {

using Bits = std::uint32_t __attribute__((vector_size(64)));

// Masked forms are used throughout: g++ 12 warns of the undefined operand within the others.
constexpr __mmask16 all = 0xFFFF;

inline __m512 look_up(const float (&table)[32], Bits entry) {
    return _mm512_permutex2var_ps(_mm512_load_ps(table), (__m512i)entry,
                                  _mm512_load_ps(table + 16));
}

inline __m512 tanh(__m512 x) {
    using namespace coefficients;
    const Bits sign = (Bits)x & 0x80000000u;
    // vminps gives its second operand where one is NaN, so NaN stays. tanh rounds to 1 from 9.02 on;
    // the table ends at 15.
    const __m512 a = _mm512_maskz_min_ps(all, _mm512_set1_ps(14.0f), (__m512)((Bits)x ^ sign));
    // The top 3 bits of the mantissa of |x| + 1 and the low 2 of its exponent number the interval;
    // the rest cleared, less 1, is its left end. Where the sum rounded up, r is slightly negative.
    const Bits shifted = (Bits)(a + 1.0f);
    const Bits entry = shifted >> 20;
    const __m512 r = a - ((__m512)(shifted & 0xFFF00000u) - 1.0f);
    __m512 p = look_up(table4, entry);
    p = _mm512_fmadd_ps(p, r, look_up(table3, entry));
    p = _mm512_fmadd_ps(p, r, look_up(table2, entry));
    p = _mm512_fmadd_ps(p, r, look_up(table1, entry));
    p = _mm512_fmadd_ps(p, r, look_up(table0, entry));
    return (__m512)((Bits)p | sign);
}

inline __m256i to_halves(__m512 v, const opw::f16*) {
    return _mm512_maskz_cvtps_ph(all, v, _MM_FROUND_TO_NEAREST_INT);
}

inline __m256i to_halves(__m512 v, const opw::bf16*) {
    // Half of the last kept bit, less one unit when that bit is 0: ties go to even. NaN gets a bit
    // that stays.
    const Bits bits = (Bits)v;
    const Bits rounded = bits + 0x7FFFu + (bits >> 16 & 1u);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_mov_epi32((__m512i)rounded, nan, (__m512i)(bits | 0x400000u));
    return _mm512_maskz_cvtepi32_epi16(all, (__m512i)((Bits)kept >> 16));
}

inline __m512 from_halves(__m256i halves, const opw::f16*) {
    return _mm512_maskz_cvtph_ps(all, halves);
}

inline __m512 from_halves(__m256i halves, const opw::bf16*) {
    return (__m512)((Bits)_mm512_maskz_cvtepu16_epi32(all, halves) << 16);
}

// 16 elements or, under a mask, fewer; memory outside the mask is not touched.
template <class Element> inline __m512 load(const Element* from, __mmask16 mask) {
    if constexpr (sizeof(Element) == sizeof(float)) {
        return _mm512_maskz_loadu_ps(mask, from);
    } else {
        return from_halves(_mm256_maskz_loadu_epi16(mask, from), from);
    }
}

template <class Element> inline void store(Element* to, __mmask16 mask, __m512 v) {
    if constexpr (sizeof(Element) == sizeof(float)) {
        _mm512_mask_storeu_ps(to, mask, v);
    } else {
        _mm256_mask_storeu_epi16(to, mask, to_halves(v, to));
    }
}

// 16 elements to an address aligned for all of them, without a copy in the caches.
template <class Element> inline void stream(Element* to, __m512 v) {
    if constexpr (sizeof(Element) == sizeof(float)) {
        _mm512_stream_ps(to, v);
    } else {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to), to_halves(v, to));
    }
}

// Elements [0, n) of x to out, for every element type; `past_cache` streams the output. Double, for
// which 32 quartics are eight digits too coarse, goes by the exponential in vectors of 8.
template <class Element>
void activate(const Element* x, Element* out, std::int64_t n, double threshold, double alpha,
              double beta, bool past_cache = false) {
    if constexpr (sizeof(Element) == sizeof(double)) {
        by_exp::activate(x, out, n, threshold, alpha, beta);
    } else {
        const __m512 t = _mm512_set1_ps(static_cast<float>(threshold));
        const __m512 a = _mm512_set1_ps(static_cast<float>(alpha));
        const __m512 b = _mm512_set1_ps(static_cast<float>(beta));
        const auto result = [&](std::int64_t i, __mmask16 mask) {
            const __m512 v = load(x + i, mask);
            const __mmask16 above = _mm512_cmp_ps_mask(v, t, _CMP_GT_OQ);
            return _mm512_mask_mov_ps(by_table::tanh(v), above, _mm512_fmadd_ps(a, v, b));
        };
        const auto some = [](std::int64_t count) {
            return static_cast<__mmask16>((1u << count) - 1);
        };
        std::int64_t i = 0;
        if (past_cache) {
            const auto misplaced = reinterpret_cast<std::uintptr_t>(out) / sizeof(Element) % 16;
            const std::int64_t head = std::min<std::int64_t>(n, (16 - misplaced) % 16);
            store(out, some(head), result(0, some(head)));
            for (i = head; i + 16 <= n; i += 16) stream(out + i, result(i, all));
            _mm_sfence();
        }
        for (; i + 16 <= n; i += 16) store(out + i, all, result(i, all));
        if (i < n) store(out + i, some(n - i), result(i, some(n - i)));
    }
}

}  // namespace by_table
