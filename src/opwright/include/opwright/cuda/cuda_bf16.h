// __nv_bfloat16 and __nv_bfloat162.
#pragma once

#include "cuda_runtime.h"
#include "detail/short_floats.h"

OPW_SHORT_FLOAT(__nv_bfloat16, __nv_bfloat16_raw, float_to_bf16, bf16_to_float)
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

OPW_INLINE __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
OPW_INLINE __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
OPW_INLINE __nv_bfloat16 __double2bfloat16(double x) { return __nv_bfloat16(x); }
OPW_INLINE float __bfloat162float(__nv_bfloat16 x) { return x; }
OPW_INLINE __nv_bfloat16 __int2bfloat16_rn(int x) { return __nv_bfloat16(x); }
OPW_INLINE int __bfloat162int_rn(__nv_bfloat16 x) { return __float2int_rn(x); }
OPW_INLINE __nv_bfloat162 __float2bfloat162_rn(float x) { return __nv_bfloat162(__nv_bfloat16(x), __nv_bfloat16(x)); }
OPW_INLINE __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return __nv_bfloat162(__nv_bfloat16(x), __nv_bfloat16(y)); }
OPW_INLINE __nv_bfloat162 __float22bfloat162_rn(float2 x) { return __floats2bfloat162_rn(x.x, x.y); }
OPW_INLINE float2 __bfloat1622float2(const __nv_bfloat162& x) { return make_float2(x.x, x.y); }
OPW_INLINE __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return __nv_bfloat162(x, x); }
OPW_INLINE __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return __nv_bfloat162(x, y); }
OPW_INLINE __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return __nv_bfloat162(x, y); }
OPW_INLINE __nv_bfloat16 __low2bfloat16(const __nv_bfloat162& x) { return x.x; }
OPW_INLINE __nv_bfloat16 __high2bfloat16(const __nv_bfloat162& x) { return x.y; }
OPW_INLINE float __low2float(const __nv_bfloat162& x) { return x.x; }
OPW_INLINE float __high2float(const __nv_bfloat162& x) { return x.y; }
OPW_INLINE unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits_; }
OPW_INLINE __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __nv_bfloat16(__nv_bfloat16_raw{x}); }
