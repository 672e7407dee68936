// AVX2 with FMA and F16C: 16 registers of 32 bytes.
// Compilers' own built-ins stand for <immintrin.h>, which alone takes 0.3 s to read.
#pragma once

#include <cstdint>
#include <cstring>

#include "micro_kernel.h"
#include "opwright/types.h"
#include "vectors.h"

namespace gemm {

// 6 x 2 sums leave 4 registers for B and the broadcast of A: 12 multiply-adds for 2 loads and 6
// broadcasts, and 12 in flight where 2 FMA ports x 4 cycles need 8.
struct Avx2Tile {
    static constexpr int rows = 6;
    static constexpr int vectors = 2;
};

template <class Acc> struct Avx2;

template <> struct Avx2<double> : Avx2Tile, Widened<double> {
    using Acc = double;
    using Vec = double __attribute__((vector_size(32)));
    static constexpr int lanes = 4;

    static Vec fma(Vec x, Vec y, Vec z) {
#if defined(__clang__)
#pragma clang fp contract(fast)
        return x * y + z;
#else
        return __builtin_ia32_vfmaddpd256(x, y, z);
#endif
    }
    static Vec load(const double* p) {
        Vec x;
        std::memcpy(&x, p, sizeof x);
        return x;
    }
    static void store(double* p, Vec x) { std::memcpy(p, &x, sizeof x); }
    static Vec load_part(const double* p, int count) {
        Mask lanes_left = mask(count);
        if (in_one_page(p, sizeof(Vec))) {
            return __builtin_ia32_maskloadpd256(reinterpret_cast<const Vec*>(p), lanes_left);
        }
        Vec x{};
        asm("vgatherqpd %1, (%2,%3,8), %0"
            : "+&x"(x), "+&x"(lanes_left)
            : "r"(p), "x"(Mask{0, 1, 2, 3}), "m"(*reinterpret_cast<const double(*)[lanes]>(p)));
        return x;
    }
    static void store_part(double* p, Vec x, int count) {
        __builtin_ia32_maskstorepd256(reinterpret_cast<Vec*>(p), mask(count), x);
    }

private:
    using Mask = long long __attribute__((vector_size(32)));

    static Mask mask(int count) { return Mask{0, 1, 2, 3} < count; }
};

template <> struct Avx2<float> : Avx2Tile, Widened<float> {
    using Acc = float;
    using Vec = float __attribute__((vector_size(32)));
    using Word = std::uint32_t __attribute__((vector_size(32)));
    using Half = std::uint16_t __attribute__((vector_size(16)));
    static constexpr int lanes = 8;

    static Vec fma(Vec x, Vec y, Vec z) {
#if defined(__clang__)
#pragma clang fp contract(fast)
        return x * y + z;
#else
        return __builtin_ia32_vfmaddps256(x, y, z);
#endif
    }
    static Vec load(const float* p) {
        Vec x;
        std::memcpy(&x, p, sizeof x);
        return x;
    }
    static Vec load(const opw::bf16* p) {
        Half h;
        std::memcpy(&h, p, sizeof h);
        return widen_bf16<Vec, Word>(h);
    }
    static Vec load(const opw::f16* p) {
#if defined(__clang__)
        using Fp16 = __fp16 __attribute__((ext_vector_type(8)));
        Fp16 h;
        std::memcpy(&h, p, sizeof h);
        return __builtin_convertvector(h, Vec);
#else
        using Fp16 = short __attribute__((vector_size(16)));
        Fp16 h;
        std::memcpy(&h, p, sizeof h);
        return __builtin_ia32_vcvtph2ps256(h);
#endif
    }
    static void store(float* p, Vec x) { std::memcpy(p, &x, sizeof x); }
    static void store(opw::bf16* p, Vec x) {
        const Half h = narrow_bf16<Half, Word>(x);
        std::memcpy(p, &h, sizeof h);
    }
    static void store(opw::f16* p, Vec x) {
        const auto h = __builtin_ia32_vcvtps2ph256(x, 0);  // 0: to nearest even
        std::memcpy(p, &h, sizeof h);
    }
    static Vec load_part(const float* p, int count) {
        Mask lanes_left = mask(count);
        if (in_one_page(p, sizeof(Vec))) {
            return __builtin_ia32_maskloadps256(reinterpret_cast<const Vec*>(p), lanes_left);
        }
        Vec x{};
        asm("vgatherdps %1, (%2,%3,4), %0"
            : "+&x"(x), "+&x"(lanes_left)
            : "r"(p), "x"(Mask{0, 1, 2, 3, 4, 5, 6, 7}), "m"(*reinterpret_cast<const float(*)[lanes]>(p)));
        return x;
    }
    static void store_part(float* p, Vec x, int count) {
        __builtin_ia32_maskstoreps256(reinterpret_cast<Vec*>(p), mask(count), x);
    }

private:
    using Mask = int __attribute__((vector_size(32)));

    static Mask mask(int count) { return Mask{0, 1, 2, 3, 4, 5, 6, 7} < count; }
};

}  // namespace gemm
