// Vectors that every compiler and CPU has: GCC's vector extensions over 16-byte registers, which are
// SSE2 in the baseline of x86-64 and NEON on ARM.
#pragma once

#include <cstdint>
#include <cstring>

#include "micro_kernel.h"
#include "opwright/types.h"
#include "vectors.h"

namespace gemm {

// 4 x 2 sums leave 8 of 16 registers for B, the broadcast of A and, without fused multiply-add, the
// products: 8 multiplications and 8 additions for 2 loads and 4 broadcasts.
struct PortableTile {
    static constexpr int rows = 4;
    static constexpr int vectors = 2;
};

template <class Sum> struct Portable : PortableTile, Widened<Sum> {
    using Acc = Sum;
    using Vec = Vector<Sum, 16 / sizeof(Sum)>;
    static constexpr int lanes = 16 / sizeof(Sum);

    static Vec fma(Vec x, Vec y, Vec z) { return x * y + z; }
    static Vec load(const Sum* p) {
        Vec x;
        std::memcpy(&x, p, sizeof x);
        return x;
    }
    static void store(Sum* p, Vec x) { std::memcpy(p, &x, sizeof x); }
    template <class Elem> static Vec load(const Elem* p) {
        Vec x{};  // g++ 12 takes lanes set one by one for not set
        for (int lane = 0; lane < lanes; ++lane) x[lane] = static_cast<Sum>(p[lane]);
        return x;
    }
    template <class Elem> static void store(Elem* p, Vec x) {
        for (int lane = 0; lane < lanes; ++lane) p[lane] = static_cast<Elem>(x[lane]);
    }
    static Vec load(const opw::bf16* p) {
        Half h;
        std::memcpy(&h, p, sizeof h);
        return widen_bf16<Vec, Word>(h);
    }
    static void store(opw::bf16* p, Vec x) {
        const Half h = narrow_bf16<Half, Word>(x);
        std::memcpy(p, &h, sizeof h);
    }
    static Vec load_part(const Sum* p, int count) {
        Vec x{};
        std::memcpy(&x, p, static_cast<std::size_t>(count) * sizeof(Sum));
        return x;
    }
    static void store_part(Sum* p, Vec x, int count) {
        std::memcpy(p, &x, static_cast<std::size_t>(count) * sizeof(Sum));
    }

private:
    using Word = Vector<std::uint32_t, lanes>;
    using Half = Vector<std::uint16_t, lanes>;
};

}  // namespace gemm
