// Four neighbours of a row at once: 16 bytes for a float, in one request instead of four.
#pragma once

namespace fours {

using std::uintptr_t;

__device__ inline void load(const float* p, float (&v)[4]) {
    const float4 w = *reinterpret_cast<const float4*>(p);
    v[0] = w.x, v[1] = w.y, v[2] = w.z, v[3] = w.w;
}
__device__ inline void load(const double* p, double (&v)[4]) {
    const double2 low = *reinterpret_cast<const double2*>(p), high = *reinterpret_cast<const double2*>(p + 2);
    v[0] = low.x, v[1] = low.y, v[2] = high.x, v[3] = high.y;
}
__device__ inline void load(const __half* p, float (&v)[4]) {
    const ushort4 w = *reinterpret_cast<const ushort4*>(p);
    v[0] = __half2float(__ushort_as_half(w.x)), v[1] = __half2float(__ushort_as_half(w.y));
    v[2] = __half2float(__ushort_as_half(w.z)), v[3] = __half2float(__ushort_as_half(w.w));
}
__device__ inline void load(const __nv_bfloat16* p, float (&v)[4]) {
    const ushort4 w = *reinterpret_cast<const ushort4*>(p);
    v[0] = __bfloat162float(__ushort_as_bfloat16(w.x)), v[1] = __bfloat162float(__ushort_as_bfloat16(w.y));
    v[2] = __bfloat162float(__ushort_as_bfloat16(w.z)), v[3] = __bfloat162float(__ushort_as_bfloat16(w.w));
}

__device__ inline void store(float* p, const float (&v)[4]) {
    *reinterpret_cast<float4*>(p) = make_float4(v[0], v[1], v[2], v[3]);
}
__device__ inline void store(double* p, const double (&v)[4]) {
    *reinterpret_cast<double2*>(p) = make_double2(v[0], v[1]);
    *reinterpret_cast<double2*>(p + 2) = make_double2(v[2], v[3]);
}
__device__ inline void store(__half* p, const float (&v)[4]) {
    *reinterpret_cast<ushort4*>(p) =
        make_ushort4(__half_as_ushort(__float2half(v[0])), __half_as_ushort(__float2half(v[1])),
                     __half_as_ushort(__float2half(v[2])), __half_as_ushort(__float2half(v[3])));
}
__device__ inline void store(__nv_bfloat16* p, const float (&v)[4]) {
    *reinterpret_cast<ushort4*>(p) =
        make_ushort4(__bfloat16_as_ushort(__float2bfloat16(v[0])), __bfloat16_as_ushort(__float2bfloat16(v[1])),
                     __bfloat16_as_ushort(__float2bfloat16(v[2])), __bfloat16_as_ushort(__float2bfloat16(v[3])));
}

// Whether four at once may be used for the rows of a matrix with this many columns: a device refuses
// wide accesses to addresses that are no multiple of their size.
template <class Element> __device__ inline bool aligned(const Element* matrix, int64_t columns) {
    return reinterpret_cast<uintptr_t>(matrix) % (4 * sizeof(Element)) == 0 && columns % 4 == 0;
}

// Columns [column, column + 4) of a row; zeros from `columns` on, and for no row at all.
template <class Element, class Sum>
__device__ inline void load_row(const Element* row, int64_t column, int64_t columns, bool inside, bool wide, Sum (&v)[4]) {
    if (inside && wide && column + 4 <= columns) return load(row + column, v);
    for (int i = 0; i < 4; ++i) {
        v[i] = inside && column + i < columns ? static_cast<Sum>(row[column + i]) : Sum{0};
    }
}

}  // namespace fours
