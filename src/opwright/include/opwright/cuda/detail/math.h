// Device mathematics: the C library's functions at the global scope, CUDA's own names, and the fast
// intrinsics. A fast intrinsic is computed to full precision here; only its range rules are kept.
#pragma once

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <limits>

#include "device.h"

using std::abs;
using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;

#define CUDART_INF_F (__builtin_inff())
#define CUDART_INF (__builtin_inf())
#define CUDART_NAN_F (__builtin_nanf(""))
#define CUDART_NAN (__builtin_nan(""))
#define CUDART_PI_F 3.141592654f
#define CUDART_PI 3.1415926535897931
#define CUDART_MAX_NORMAL_F 3.402823466e38f

#define OPW_MINMAX(T)                                               \
    OPW_INLINE constexpr T min(T a, T b) { return b < a ? b : a; }  \
    OPW_INLINE constexpr T max(T a, T b) { return a < b ? b : a; }
OPW_MINMAX(int)
OPW_MINMAX(unsigned)
OPW_MINMAX(long)
OPW_MINMAX(unsigned long)
OPW_MINMAX(long long)
OPW_MINMAX(unsigned long long)
#undef OPW_MINMAX
#define OPW_MIXED(name, T, A, B) \
    OPW_INLINE constexpr T name(A a, B b) { return name(static_cast<T>(a), static_cast<T>(b)); }
#define OPW_MIXED_BOTH(T, A, B) OPW_MIXED(min, T, A, B) OPW_MIXED(max, T, A, B)
OPW_MIXED_BOTH(unsigned, int, unsigned)
OPW_MIXED_BOTH(unsigned, unsigned, int)
OPW_MIXED_BOTH(long long, int, long long)
OPW_MIXED_BOTH(long long, long long, int)
OPW_MIXED_BOTH(unsigned long long, unsigned, unsigned long long)
OPW_MIXED_BOTH(unsigned long long, unsigned long long, unsigned)
OPW_MIXED_BOTH(long, int, long)
OPW_MIXED_BOTH(long, long, int)
OPW_MIXED_BOTH(unsigned long, unsigned, unsigned long)
OPW_MIXED_BOTH(unsigned long, unsigned long, unsigned)
OPW_MIXED_BOTH(unsigned long, int, unsigned long)
OPW_MIXED_BOTH(unsigned long, unsigned long, int)
#undef OPW_MIXED_BOTH
#undef OPW_MIXED
// The device's minimum and maximum drop a NaN, as fmin and fmax do.
OPW_INLINE float min(float a, float b) { return std::fmin(a, b); }
OPW_INLINE float max(float a, float b) { return std::fmax(a, b); }
OPW_INLINE double min(double a, double b) { return std::fmin(a, b); }
OPW_INLINE double max(double a, double b) { return std::fmax(a, b); }
OPW_INLINE double min(float a, double b) { return std::fmin(static_cast<double>(a), b); }
OPW_INLINE double max(float a, double b) { return std::fmax(static_cast<double>(a), b); }
OPW_INLINE double min(double a, float b) { return std::fmin(a, static_cast<double>(b)); }
OPW_INLINE double max(double a, float b) { return std::fmax(a, static_cast<double>(b)); }

OPW_INLINE float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
OPW_INLINE double rsqrt(double x) { return 1.0 / std::sqrt(x); }
OPW_INLINE float rsqrt(float x) { return rsqrtf(x); }
OPW_INLINE float rcbrtf(float x) { return 1.0f / cbrtf(x); }
OPW_INLINE double rcbrt(double x) { return 1.0 / cbrt(x); }
OPW_INLINE float sinpif(float x) { return static_cast<float>(std::sin(M_PI * std::fmod(static_cast<double>(x), 2.0))); }
OPW_INLINE float cospif(float x) { return static_cast<float>(std::cos(M_PI * std::fmod(static_cast<double>(x), 2.0))); }
OPW_INLINE double sinpi(double x) { return std::sin(M_PI * std::fmod(x, 2.0)); }
OPW_INLINE double cospi(double x) { return std::cos(M_PI * std::fmod(x, 2.0)); }
OPW_INLINE void sincospif(float x, float* s, float* c) { *s = sinpif(x); *c = cospif(x); }
OPW_INLINE float normf(int n, const float* a) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * a[i];
    return static_cast<float>(std::sqrt(sum));
}
OPW_INLINE float norm3df(float a, float b, float c) { return std::hypot(a, b, c); }
OPW_INLINE double norm3d(double a, double b, double c) { return std::hypot(a, b, c); }
OPW_INLINE float rnorm3df(float a, float b, float c) { return 1.0f / std::hypot(a, b, c); }
OPW_INLINE float rhypotf(float a, float b) { return 1.0f / hypotf(a, b); }
OPW_INLINE float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }
OPW_INLINE double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752); }
OPW_INLINE float fdividef(float a, float b) { return a / b; }

namespace opw {
// The C library's functions that write through pointers, which are not traced.
template <class T> OPW_INLINE void sincos(std::common_type_t<T> x, T* s, T* c) { *s = std::sin(x); *c = std::cos(x); }
template <class T> OPW_INLINE T modf(std::common_type_t<T> x, T* whole) {
    T w;
    const T rest = std::modf(x, &w);
    *whole = w;
    return rest;
}
template <class T> OPW_INLINE T frexp(T x, int* exponent) {
    int e;
    const T m = std::frexp(x, &e);
    *exponent = e;
    return m;
}
template <class T> OPW_INLINE T remquo(T x, std::common_type_t<T> y, int* quotient) {
    int q;
    const T rest = std::remquo(x, y, &q);
    *quotient = q;
    return rest;
}
}  // namespace opw

OPW_INLINE float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
OPW_INLINE float __expf(float x) { return expf(x); }
OPW_INLINE float __exp10f(float x) { return powf(10.0f, x); }
OPW_INLINE float __logf(float x) { return logf(x); }
OPW_INLINE float __log2f(float x) { return log2f(x); }
OPW_INLINE float __log10f(float x) { return log10f(x); }
OPW_INLINE float __sinf(float x) { return sinf(x); }
OPW_INLINE float __cosf(float x) { return cosf(x); }
OPW_INLINE float __tanf(float x) { return tanf(x); }
OPW_INLINE void __sincosf(float x, float* s, float* c) { *s = sinf(x); *c = cosf(x); }
OPW_INLINE float __powf(float x, float y) { return powf(x, y); }
// For 2^126 < |y| < 2^128 the fast division delivers 0, as documented by its vendor.
OPW_INLINE float __fdividef(float a, float b) {
    const float size = fabsf(b);
    return size > 0x1p126f && size < CUDART_INF_F ? 0.0f * a : a / b;
}

#define OPW_ROUNDED(suffix)                                                              \
    OPW_INLINE float __fadd_##suffix(float a, float b) { return a + b; }                 \
    OPW_INLINE float __fsub_##suffix(float a, float b) { return a - b; }                 \
    OPW_INLINE float __fmul_##suffix(float a, float b) { return a * b; }                 \
    OPW_INLINE float __fdiv_##suffix(float a, float b) { return a / b; }                 \
    OPW_INLINE float __frcp_##suffix(float a) { return 1.0f / a; }                       \
    OPW_INLINE float __fsqrt_##suffix(float a) { return sqrtf(a); }                      \
    OPW_INLINE float __fmaf_##suffix(float a, float b, float c) { return fmaf(a, b, c); } \
    OPW_INLINE double __dadd_##suffix(double a, double b) { return a + b; }              \
    OPW_INLINE double __dsub_##suffix(double a, double b) { return a - b; }              \
    OPW_INLINE double __dmul_##suffix(double a, double b) { return a * b; }              \
    OPW_INLINE double __ddiv_##suffix(double a, double b) { return a / b; }              \
    OPW_INLINE double __drcp_##suffix(double a) { return 1.0 / a; }                      \
    OPW_INLINE double __dsqrt_##suffix(double a) { return sqrt(a); }                     \
    OPW_INLINE double __fma_##suffix(double a, double b, double c) { return fma(a, b, c); }
OPW_ROUNDED(rn)
#undef OPW_ROUNDED

OPW_INLINE int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
OPW_INLINE int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
OPW_INLINE int __ffs(int x) { return __builtin_ffs(x); }
OPW_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
OPW_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
OPW_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
OPW_INLINE unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
OPW_INLINE unsigned long long __brevll(unsigned long long x) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
           __brev(static_cast<unsigned>(x >> 32));
}
OPW_INLINE unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long both = static_cast<unsigned long long>(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned pick = selector >> 4 * i & 0xf;
        unsigned byte = both >> 8 * (pick & 7) & 0xff;
        if (pick & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= byte << 8 * i;
    }
    return result;
}
OPW_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31) >> 32);
}
OPW_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31));
}
OPW_INLINE int __mul24(int a, int b) { return static_cast<int>(static_cast<unsigned>(a << 8 >> 8) * static_cast<unsigned>(b << 8 >> 8)); }
OPW_INLINE unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
OPW_INLINE int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
OPW_INLINE unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32); }
OPW_INLINE long long __mul64hi(long long a, long long b) { return static_cast<long long>(static_cast<__int128>(a) * b >> 64); }
OPW_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
OPW_INLINE unsigned __sad(int a, int b, unsigned c) { return static_cast<unsigned>(a < b ? b - a : a - b) + c; }
OPW_INLINE unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a < b ? b - a : a - b) + c; }
OPW_INLINE int __hadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b) >> 1); }
OPW_INLINE int __rhadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b + 1) >> 1); }
OPW_INLINE int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; ++i) c += static_cast<signed char>(a >> 8 * i) * static_cast<signed char>(b >> 8 * i);
    return c;
}
OPW_INLINE unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 0xff) * (b >> 8 * i & 0xff);
    return c;
}

namespace opw::detail {
template <class To, class From> OPW_INLINE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(static_cast<void*>(&to), &from, sizeof to);
    return to;
}
// Conversion to an integer as the device does it: out of range saturates, NaN gives 0.
template <class To> OPW_INLINE To saturate(double x) {
    if (!(x == x)) return 0;
    if (x <= static_cast<double>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
    if (x >= static_cast<double>(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
    return static_cast<To>(x);
}
}  // namespace opw::detail

OPW_INLINE int __float_as_int(float x) { return ::opw::detail::bit_cast<int>(x); }
OPW_INLINE unsigned __float_as_uint(float x) { return ::opw::detail::bit_cast<unsigned>(x); }
OPW_INLINE float __int_as_float(int x) { return ::opw::detail::bit_cast<float>(x); }
OPW_INLINE float __uint_as_float(unsigned x) { return ::opw::detail::bit_cast<float>(x); }
OPW_INLINE long long __double_as_longlong(double x) { return ::opw::detail::bit_cast<long long>(x); }
OPW_INLINE double __longlong_as_double(long long x) { return ::opw::detail::bit_cast<double>(x); }
OPW_INLINE int __double2hiint(double x) { return static_cast<int>(__double_as_longlong(x) >> 32); }
OPW_INLINE int __double2loint(double x) { return static_cast<int>(__double_as_longlong(x)); }
OPW_INLINE double __hiloint2double(int high, int low) {
    return __longlong_as_double(static_cast<long long>(high) << 32 | static_cast<unsigned>(low));
}

#define OPW_CONVERT(from, T, suffix, round)                                                               \
    OPW_INLINE int __##from##2int_##suffix(T x) { return ::opw::detail::saturate<int>(round(x)); }          \
    OPW_INLINE unsigned __##from##2uint_##suffix(T x) { return ::opw::detail::saturate<unsigned>(round(x)); } \
    OPW_INLINE long long __##from##2ll_##suffix(T x) { return ::opw::detail::saturate<long long>(round(x)); } \
    OPW_INLINE unsigned long long __##from##2ull_##suffix(T x) { return ::opw::detail::saturate<unsigned long long>(round(x)); }
OPW_CONVERT(float, float, rn, std::nearbyint)
OPW_CONVERT(float, float, rz, std::trunc)
OPW_CONVERT(float, float, rd, std::floor)
OPW_CONVERT(float, float, ru, std::ceil)
OPW_CONVERT(double, double, rn, std::nearbyint)
OPW_CONVERT(double, double, rz, std::trunc)
OPW_CONVERT(double, double, rd, std::floor)
OPW_CONVERT(double, double, ru, std::ceil)
#undef OPW_CONVERT
OPW_INLINE float __int2float_rn(int x) { return static_cast<float>(x); }
OPW_INLINE float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
OPW_INLINE float __ll2float_rn(long long x) { return static_cast<float>(x); }
OPW_INLINE float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
OPW_INLINE double __int2double_rn(int x) { return x; }
OPW_INLINE double __uint2double_rn(unsigned x) { return x; }
OPW_INLINE double __ll2double_rn(long long x) { return static_cast<double>(x); }
OPW_INLINE float __double2float_rn(double x) { return static_cast<float>(x); }
