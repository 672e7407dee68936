// __half and __half2.
#pragma once

#include "cuda_runtime.h"
#include "detail/short_floats.h"

OPW_SHORT_FLOAT(__half, __half_raw, float_to_f16, f16_to_float)
typedef __half half;
typedef __half2 half2;

OPW_INLINE __half __float2half(float x) { return __half(x); }
OPW_INLINE __half __float2half_rn(float x) { return __half(x); }
OPW_INLINE __half __double2half(double x) { return __half(x); }
OPW_INLINE float __half2float(__half x) { return x; }
OPW_INLINE __half __int2half_rn(int x) { return __half(x); }
OPW_INLINE __half __uint2half_rn(unsigned x) { return __half(x); }
OPW_INLINE int __half2int_rn(__half x) { return __float2int_rn(x); }
OPW_INLINE int __half2int_rz(__half x) { return __float2int_rz(x); }
OPW_INLINE unsigned __half2uint_rn(__half x) { return __float2uint_rn(x); }
OPW_INLINE __half2 __float2half2_rn(float x) { return __half2(__half(x), __half(x)); }
OPW_INLINE __half2 __floats2half2_rn(float x, float y) { return __half2(__half(x), __half(y)); }
OPW_INLINE __half2 __float22half2_rn(float2 x) { return __half2(__half(x.x), __half(x.y)); }
OPW_INLINE float2 __half22float2(const __half2& x) { return make_float2(x.x, x.y); }
OPW_INLINE __half2 __half2half2(__half x) { return __half2(x, x); }
OPW_INLINE __half2 __halves2half2(__half x, __half y) { return __half2(x, y); }
OPW_INLINE __half2 make_half2(__half x, __half y) { return __half2(x, y); }
OPW_INLINE __half __low2half(const __half2& x) { return x.x; }
OPW_INLINE __half __high2half(const __half2& x) { return x.y; }
OPW_INLINE float __low2float(const __half2& x) { return x.x; }
OPW_INLINE float __high2float(const __half2& x) { return x.y; }
OPW_INLINE __half2 __lowhigh2highlow(const __half2& x) { return __half2(x.y, x.x); }
OPW_INLINE unsigned short __half_as_ushort(__half x) { return x.bits_; }
OPW_INLINE short __half_as_short(__half x) { return static_cast<short>(x.bits_); }
OPW_INLINE __half __ushort_as_half(unsigned short x) { return __half(__half_raw{x}); }
OPW_INLINE __half __short_as_half(short x) { return __half(__half_raw{static_cast<unsigned short>(x)}); }
