// dim3 and the vector types. A vector of 4, 8 or 16 bytes is copied as one access, because that is
// how the device moves it: a compiler left alone would split the copy into its members.
#pragma once

#include <cstddef>
#include <cstdint>

namespace opw::detail {

#if defined(__x86_64__)
#define OPW_WIDE_REGISTER "x"
#elif defined(__aarch64__)
#define OPW_WIDE_REGISTER "w"
#else
#define OPW_WIDE_REGISTER "m"
#endif

template <std::size_t size> struct Bits;
template <> struct Bits<2> { using type __attribute__((may_alias)) = std::uint16_t; };
template <> struct Bits<4> { using type __attribute__((may_alias)) = std::uint32_t; };
template <> struct Bits<8> { using type __attribute__((may_alias)) = std::uint64_t; };
template <> struct Bits<16> {
    using type __attribute__((may_alias, vector_size(16))) = float;
};

// One load and one store of the whole object. The empty statement hides the value from the
// optimiser, which would otherwise replace the load by loads of the members.
template <std::size_t size> __attribute__((always_inline)) inline void copy(void* to, const void* from) {
    typename Bits<size>::type bits = *static_cast<const typename Bits<size>::type*>(from);
    if constexpr (size == 16) {
        asm("" : "+" OPW_WIDE_REGISTER(bits));
    } else {
        asm("" : "+r"(bits));
    }
    *static_cast<typename Bits<size>::type*>(to) = bits;
}

// The same of a structure, in the widest pieces that its alignment allows.
template <class T> __attribute__((always_inline)) inline void copy_whole(T& to, const T& from) {
    constexpr std::size_t piece = alignof(T) < 16 ? alignof(T) : 16;
    for (std::size_t i = 0; i < sizeof(T); i += piece) {
        copy<piece>(reinterpret_cast<char*>(&to) + i, reinterpret_cast<const char*>(&from) + i);
    }
}

// What a brace with a single value holds. Only braces reach it: a lone scalar stays no vector.
template <class T> struct One {
    T value;
    constexpr One(T v) : value(v) {}
};

}  // namespace opw::detail

#define OPW_WHOLE_COPY(name, bytes)                                            \
    __attribute__((always_inline)) inline name(const name& other) {            \
        ::opw::detail::copy<bytes>(this, &other);                              \
    }                                                                          \
    __attribute__((always_inline)) inline name& operator=(const name& other) { \
        ::opw::detail::copy<bytes>(this, &other);                              \
        return *this;                                                          \
    }

#if defined(OPW_COUNTED)
#define OPW_IF_COUNTED(...) __VA_ARGS__
#else
#define OPW_IF_COUNTED(...)
#endif
#define OPW_COPIED_WHOLE(name)                                                 \
    __attribute__((always_inline)) inline name(const name& other) {            \
        ::opw::detail::copy_whole(*this, other);                               \
    }                                                                          \
    __attribute__((always_inline)) inline name& operator=(const name& other) { \
        ::opw::detail::copy_whole(*this, other);                               \
        return *this;                                                          \
    }

#define OPW_VECTOR_1(T, name)                               \
    struct name##1 { T x; };                                \
    inline name##1 make_##name##1(T x) { return name##1{x}; }

#define OPW_VECTOR_2_WHOLE(T, name, bytes)                                           \
    struct alignas(bytes) name##2 {                                                  \
        T x, y;                                                                      \
        name##2() = default;                                                         \
        constexpr name##2(::opw::detail::One<T> a) : x(a.value), y(0) {}             \
        constexpr name##2(T a, T b) : x(a), y(b) {}                                  \
        OPW_WHOLE_COPY(name##2, bytes)                                               \
    };                                                                               \
    inline name##2 make_##name##2(T x, T y) { return name##2(x, y); }

#define OPW_VECTOR_3(T, name)                                                   \
    struct name##3 { T x, y, z; };                                              \
    inline name##3 make_##name##3(T x, T y, T z) { return name##3{x, y, z}; }

#define OPW_VECTOR_4_WHOLE(T, name, bytes)                                                   \
    struct alignas(bytes) name##4 {                                                          \
        T x, y, z, w;                                                                        \
        name##4() = default;                                                                 \
        constexpr name##4(::opw::detail::One<T> a) : x(a.value), y(0), z(0), w(0) {}         \
        constexpr name##4(T a, T b) : x(a), y(b), z(0), w(0) {}                              \
        constexpr name##4(T a, T b, T c) : x(a), y(b), z(c), w(0) {}                         \
        constexpr name##4(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}                    \
        OPW_WHOLE_COPY(name##4, bytes)                                                       \
    };                                                                                       \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return name##4(x, y, z, w); }

// 32 bytes: the device moves it as two accesses of 16, as the two members do here.
#define OPW_VECTOR_4_HALVES(T, name)                                             \
    struct alignas(16) name##4 {                                                 \
        T x, y, z, w;                                                            \
        name##4() = default;                                                     \
        constexpr name##4(::opw::detail::One<T> a) : x(a.value), y(0), z(0), w(0) {} \
        constexpr name##4(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}        \
        name##4(const name##4& other) {                                          \
            ::opw::detail::copy<16>(&x, &other.x);                               \
            ::opw::detail::copy<16>(&z, &other.z);                               \
        }                                                                        \
        name##4& operator=(const name##4& other) {                               \
            ::opw::detail::copy<16>(&x, &other.x);                               \
            ::opw::detail::copy<16>(&z, &other.z);                               \
            return *this;                                                        \
        }                                                                        \
    };                                                                           \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return name##4(x, y, z, w); }

#define OPW_VECTORS_1_BYTE(T, name) \
    OPW_VECTOR_1(T, name) OPW_VECTOR_2_WHOLE(T, name, 2) OPW_VECTOR_3(T, name) OPW_VECTOR_4_WHOLE(T, name, 4)
#define OPW_VECTORS_2_BYTES(T, name) \
    OPW_VECTOR_1(T, name) OPW_VECTOR_2_WHOLE(T, name, 4) OPW_VECTOR_3(T, name) OPW_VECTOR_4_WHOLE(T, name, 8)
#define OPW_VECTORS_4_BYTES(T, name) \
    OPW_VECTOR_1(T, name) OPW_VECTOR_2_WHOLE(T, name, 8) OPW_VECTOR_3(T, name) OPW_VECTOR_4_WHOLE(T, name, 16)
#define OPW_VECTORS_8_BYTES(T, name) \
    OPW_VECTOR_1(T, name) OPW_VECTOR_2_WHOLE(T, name, 16) OPW_VECTOR_3(T, name) OPW_VECTOR_4_HALVES(T, name)

OPW_VECTORS_1_BYTE(signed char, char)
OPW_VECTORS_1_BYTE(unsigned char, uchar)
OPW_VECTORS_2_BYTES(short, short)
OPW_VECTORS_2_BYTES(unsigned short, ushort)
OPW_VECTORS_4_BYTES(int, int)
OPW_VECTORS_4_BYTES(unsigned int, uint)
OPW_VECTORS_4_BYTES(float, float)
OPW_VECTORS_8_BYTES(long, long)
OPW_VECTORS_8_BYTES(unsigned long, ulong)
OPW_VECTORS_8_BYTES(long long, longlong)
OPW_VECTORS_8_BYTES(unsigned long long, ulonglong)
OPW_VECTORS_8_BYTES(double, double)

#undef OPW_VECTOR_1
#undef OPW_VECTOR_2_WHOLE
#undef OPW_VECTOR_3
#undef OPW_VECTOR_4_WHOLE
#undef OPW_VECTOR_4_HALVES
#undef OPW_VECTORS_1_BYTE
#undef OPW_VECTORS_2_BYTES
#undef OPW_VECTORS_4_BYTES
#undef OPW_VECTORS_8_BYTES

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1)
        : x(vx), y(vy), z(vz) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
};
