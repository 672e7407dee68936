// AVX-512: 32 registers of 64 bytes, and masks that keep a load or store inside its array.
// Compilers' own built-ins stand for <immintrin.h>, which alone takes 0.3 s to read.
#pragma once

#include <cstdint>
#include <cstring>

#include "micro_avx2.h"
#include "micro_kernel.h"
#include "opwright/types.h"
#include "vectors.h"

namespace gemm {

// 12 x 2 sums leave 8 registers for B and the broadcast of A: 24 multiply-adds for 2 loads and 12
// broadcasts, and 24 in flight where 2 FMA ports x 4 cycles need 8.
struct Avx512Tile {
    static constexpr int rows = 12;
    static constexpr int vectors = 2;
};

template <class Acc> struct Avx512;

template <> struct Avx512<double> : Avx512Tile, Widened<double> {
    using Acc = double;
    using Vec = double __attribute__((vector_size(64)));
    using Narrow = Avx2<double>;
    static constexpr int lanes = 8;

    static Vec fma(Vec x, Vec y, Vec z) {
#if defined(__clang__)
#pragma clang fp contract(fast)
        return x * y + z;
#else
        return __builtin_ia32_vfmaddpd512_mask(x, y, z, -1, 4);  // 4: round as the thread does
#endif
    }
    static Vec load(const double* p) {
        Vec x;
        std::memcpy(&x, p, sizeof x);
        return x;
    }
    static void store(double* p, Vec x) { std::memcpy(p, &x, sizeof x); }
    static Vec load_part(const double* p, int count) {
        return __builtin_ia32_loadupd512_mask(p, Vec{}, mask(count));
    }
    static void store_part(double* p, Vec x, int count) {
        __builtin_ia32_storeupd512_mask(p, x, mask(count));
    }

private:
    static unsigned char mask(int count) { return static_cast<unsigned char>((1u << count) - 1); }
};

template <> struct Avx512<float> : Avx512Tile, Widened<float> {
    using Acc = float;
    using Vec = float __attribute__((vector_size(64)));
    using Narrow = Avx2<float>;
    using Word = std::uint32_t __attribute__((vector_size(64)));
    using Half = std::uint16_t __attribute__((vector_size(32)));
    static constexpr int lanes = 16;

    static Vec fma(Vec x, Vec y, Vec z) {
#if defined(__clang__)
#pragma clang fp contract(fast)
        return x * y + z;
#else
        return __builtin_ia32_vfmaddps512_mask(x, y, z, -1, 4);
#endif
    }
    static Vec load(const float* p) {
        Vec x;
        std::memcpy(&x, p, sizeof x);
        return x;
    }
    static Vec load(const opw::bf16* p) { return widen_bf16<Vec, Word>(load_half(p)); }
    static Vec load(const opw::f16* p) { return widen_f16(load_half(p)); }
    static void store(float* p, Vec x) { std::memcpy(p, &x, sizeof x); }
    static void store(opw::bf16* p, Vec x) {
        const Half h = narrow_bf16<Half, Word>(x);
        std::memcpy(p, &h, sizeof h);
    }
    static void store(opw::f16* p, Vec x) {
        const auto h = __builtin_ia32_vcvtps2ph512_mask(x, 0, Signed{}, -1);  // 0: to nearest even
        std::memcpy(p, &h, sizeof h);
    }
    static Vec load_part(const float* p, int count) {
        return __builtin_ia32_loadups512_mask(p, Vec{}, mask(count));
    }
    static void store_part(float* p, Vec x, int count) {
        __builtin_ia32_storeups512_mask(p, x, mask(count));
    }

private:
    using Signed = short __attribute__((vector_size(32)));

    static unsigned short mask(int count) { return static_cast<unsigned short>((1u << count) - 1); }
    static Half load_half(const void* p) {
        Half h;
        std::memcpy(&h, p, sizeof h);
        return h;
    }
    static Vec widen_f16(Half h) {
        return __builtin_ia32_vcvtph2ps512_mask(reinterpret_cast<Signed>(h), Vec{}, -1, 4);
    }
};

}  // namespace gemm
