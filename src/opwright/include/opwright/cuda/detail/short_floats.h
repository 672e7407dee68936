// __half and __nv_bfloat16 from one description: every operation is done in float and rounded once.
// For add, subtract, multiply and divide that is exact: float has more than twice a half's digits
// plus two, so the second rounding cannot differ from a single one. A fused multiply-add goes
// through double, where the product is exact.
#pragma once

#include "../../types.h"
#include "math.h"

namespace opw::detail {

// To float with the last bit made odd when anything was lost, so that rounding again is harmless.
OPW_INLINE float to_odd_float(double x) {
    const float nearest = static_cast<float>(x);
    if (static_cast<double>(nearest) == x || !(x == x) || std::isinf(nearest)) return nearest;
    std::uint32_t bits = bit_cast<std::uint32_t>(nearest);
    if ((static_cast<double>(nearest) > x) == (x > 0)) bits -= 1;  // towards zero
    return bit_cast<float>(bits | 1u);
}

}  // namespace opw::detail

#define OPW_SHORT_FLOAT(T, Raw, from_float, to_float)                                                        \
    struct Raw { unsigned short x; };                                                                        \
    struct alignas(2) T {                                                                                    \
        unsigned short bits_;                                                                                \
        T() = default;                                                                                       \
        OPW_INLINE T(float v) : bits_(::opw::detail::from_float(v)) {}                                       \
        OPW_INLINE T(double v) : bits_(::opw::detail::from_float(::opw::detail::to_odd_float(v))) {}         \
        OPW_INLINE T(int v) : T(static_cast<double>(v)) {}                                                   \
        OPW_INLINE T(unsigned v) : T(static_cast<double>(v)) {}                                              \
        OPW_INLINE T(long v) : T(static_cast<double>(v)) {}                                                  \
        OPW_INLINE T(unsigned long v) : T(static_cast<double>(v)) {}                                         \
        OPW_INLINE T(long long v) : T(static_cast<double>(v)) {}                                             \
        OPW_INLINE T(unsigned long long v) : T(static_cast<double>(v)) {}                                    \
        OPW_INLINE T(const Raw& raw) : bits_(raw.x) {}                                                       \
        OPW_INLINE operator float() const { return ::opw::detail::to_float(bits_); }                         \
        OPW_INLINE operator Raw() const { return Raw{bits_}; }                                               \
    };                                                                                                       \
    OPW_INLINE T operator+(T a, T b) { return T(static_cast<float>(a) + static_cast<float>(b)); }            \
    OPW_INLINE T operator-(T a, T b) { return T(static_cast<float>(a) - static_cast<float>(b)); }            \
    OPW_INLINE T operator*(T a, T b) { return T(static_cast<float>(a) * static_cast<float>(b)); }            \
    OPW_INLINE T operator/(T a, T b) { return T(static_cast<float>(a) / static_cast<float>(b)); }            \
    OPW_INLINE T operator-(T a) { T r; r.bits_ = static_cast<unsigned short>(a.bits_ ^ 0x8000u); return r; } \
    OPW_INLINE T operator+(T a) { return a; }                                                                \
    OPW_INLINE T& operator+=(T& a, T b) { return a = a + b; }                                                \
    OPW_INLINE T& operator-=(T& a, T b) { return a = a - b; }                                                \
    OPW_INLINE T& operator*=(T& a, T b) { return a = a * b; }                                                \
    OPW_INLINE T& operator/=(T& a, T b) { return a = a / b; }                                                \
    OPW_INLINE T& operator++(T& a) { return a = a + T(1.0f); }                                               \
    OPW_INLINE T& operator--(T& a) { return a = a - T(1.0f); }                                               \
    OPW_INLINE bool operator==(T a, T b) { return static_cast<float>(a) == static_cast<float>(b); }          \
    OPW_INLINE bool operator!=(T a, T b) { return static_cast<float>(a) != static_cast<float>(b); }          \
    OPW_INLINE bool operator<(T a, T b) { return static_cast<float>(a) < static_cast<float>(b); }            \
    OPW_INLINE bool operator>(T a, T b) { return static_cast<float>(a) > static_cast<float>(b); }            \
    OPW_INLINE bool operator<=(T a, T b) { return static_cast<float>(a) <= static_cast<float>(b); }          \
    OPW_INLINE bool operator>=(T a, T b) { return static_cast<float>(a) >= static_cast<float>(b); }          \
    struct alignas(4) T##2 {                                                                                 \
        T x, y;                                                                                              \
        T##2() = default;                                                                                    \
        OPW_INLINE T##2(T a, T b) : x(a), y(b) {}                                                            \
        OPW_WHOLE_COPY(T##2, 4)                                                                              \
    };                                                                                                       \
    OPW_INLINE T##2 operator+(const T##2& a, const T##2& b) { return T##2(a.x + b.x, a.y + b.y); }           \
    OPW_INLINE T##2 operator-(const T##2& a, const T##2& b) { return T##2(a.x - b.x, a.y - b.y); }           \
    OPW_INLINE T##2 operator*(const T##2& a, const T##2& b) { return T##2(a.x * b.x, a.y * b.y); }           \
    OPW_INLINE T##2 operator/(const T##2& a, const T##2& b) { return T##2(a.x / b.x, a.y / b.y); }           \
    OPW_INLINE T##2& operator+=(T##2& a, const T##2& b) { return a = a + b; }                                \
    OPW_INLINE T##2& operator*=(T##2& a, const T##2& b) { return a = a * b; }                                \
    OPW_INLINE T __hadd(T a, T b) { return a + b; }                                                          \
    OPW_INLINE T __hsub(T a, T b) { return a - b; }                                                          \
    OPW_INLINE T __hmul(T a, T b) { return a * b; }                                                          \
    OPW_INLINE T __hdiv(T a, T b) { return a / b; }                                                          \
    OPW_INLINE T __hneg(T a) { return -a; }                                                                  \
    OPW_INLINE T __habs(T a) { a.bits_ &= 0x7fffu; return a; }                                               \
    OPW_INLINE T __hfma(T a, T b, T c) {                                                                     \
        return T(static_cast<double>(static_cast<float>(a)) * static_cast<float>(b) + static_cast<float>(c)); \
    }                                                                                                        \
    OPW_INLINE T __hfma_sat(T a, T b, T c) { return T(__saturatef(static_cast<float>(__hfma(a, b, c)))); }    \
    OPW_INLINE bool __heq(T a, T b) { return a == b; }                                                       \
    OPW_INLINE bool __hne(T a, T b) { return a != b; }                                                       \
    OPW_INLINE bool __hlt(T a, T b) { return a < b; }                                                        \
    OPW_INLINE bool __hle(T a, T b) { return a <= b; }                                                       \
    OPW_INLINE bool __hgt(T a, T b) { return a > b; }                                                        \
    OPW_INLINE bool __hge(T a, T b) { return a >= b; }                                                       \
    OPW_INLINE bool __hisnan(T a) { return std::isnan(static_cast<float>(a)); }                              \
    OPW_INLINE int __hisinf(T a) {                                                                           \
        const float f = a;                                                                                   \
        return std::isinf(f) ? (f > 0 ? 1 : -1) : 0;                                                         \
    }                                                                                                        \
    OPW_INLINE T __hmax(T a, T b) { return T(std::fmax(static_cast<float>(a), static_cast<float>(b))); }     \
    OPW_INLINE T __hmin(T a, T b) { return T(std::fmin(static_cast<float>(a), static_cast<float>(b))); }     \
    OPW_INLINE T hexp(T a) { return T(std::exp(static_cast<double>(static_cast<float>(a)))); }               \
    OPW_INLINE T hexp2(T a) { return T(std::exp2(static_cast<double>(static_cast<float>(a)))); }             \
    OPW_INLINE T hlog(T a) { return T(std::log(static_cast<double>(static_cast<float>(a)))); }               \
    OPW_INLINE T hlog2(T a) { return T(std::log2(static_cast<double>(static_cast<float>(a)))); }             \
    OPW_INLINE T hsqrt(T a) { return T(std::sqrt(static_cast<double>(static_cast<float>(a)))); }             \
    OPW_INLINE T hrsqrt(T a) { return T(1.0 / std::sqrt(static_cast<double>(static_cast<float>(a)))); }      \
    OPW_INLINE T hrcp(T a) { return T(1.0 / static_cast<double>(static_cast<float>(a))); }                   \
    OPW_INLINE T hsin(T a) { return T(std::sin(static_cast<double>(static_cast<float>(a)))); }               \
    OPW_INLINE T hcos(T a) { return T(std::cos(static_cast<double>(static_cast<float>(a)))); }               \
    OPW_INLINE T htanh(T a) { return T(std::tanh(static_cast<double>(static_cast<float>(a)))); }             \
    OPW_INLINE T hfloor(T a) { return T(std::floor(static_cast<float>(a))); }                                \
    OPW_INLINE T hceil(T a) { return T(std::ceil(static_cast<float>(a))); }                                  \
    OPW_INLINE T hrint(T a) { return T(std::nearbyint(static_cast<float>(a))); }                             \
    OPW_INLINE T htrunc(T a) { return T(std::trunc(static_cast<float>(a))); }                                \
    OPW_INLINE T##2 __hadd2(const T##2& a, const T##2& b) { return a + b; }                                  \
    OPW_INLINE T##2 __hsub2(const T##2& a, const T##2& b) { return a - b; }                                  \
    OPW_INLINE T##2 __hmul2(const T##2& a, const T##2& b) { return a * b; }                                  \
    OPW_INLINE T##2 __h2div(const T##2& a, const T##2& b) { return a / b; }                                  \
    OPW_INLINE T##2 __hneg2(const T##2& a) { return T##2(-a.x, -a.y); }                                      \
    OPW_INLINE T##2 __habs2(const T##2& a) { return T##2(__habs(a.x), __habs(a.y)); }                        \
    OPW_INLINE T##2 __hfma2(const T##2& a, const T##2& b, const T##2& c) {                                   \
        return T##2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));                                           \
    }                                                                                                        \
    OPW_INLINE T##2 __hmax2(const T##2& a, const T##2& b) { return T##2(__hmax(a.x, b.x), __hmax(a.y, b.y)); } \
    OPW_INLINE T##2 __hmin2(const T##2& a, const T##2& b) { return T##2(__hmin(a.x, b.x), __hmin(a.y, b.y)); } \
    OPW_INLINE T##2 h2exp(const T##2& a) { return T##2(hexp(a.x), hexp(a.y)); }                              \
    OPW_INLINE T##2 h2sqrt(const T##2& a) { return T##2(hsqrt(a.x), hsqrt(a.y)); }                           \
    OPW_INLINE T##2 h2rsqrt(const T##2& a) { return T##2(hrsqrt(a.x), hrsqrt(a.y)); }                        \
    OPW_API T atomicAdd(T* address, T value);                                                                \
    OPW_API T##2 atomicAdd(T##2* address, T##2 value);
