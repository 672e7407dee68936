// What device code may call: indices, barriers, fences, warp functions and atomics. All are answered
// by the emulator's core; the address a call returns to tells it the source line.
#pragma once

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "types.h"

#if defined(__clang__)
#define OPW_KERNEL __attribute__((noinline))
#define OPW_ONE_CALL __attribute__((nomerge))  // of two calls in two branches, clang would make one
#else
#define OPW_KERNEL __attribute__((noinline, noclone))
#define OPW_ONE_CALL
#endif
#define OPW_API __attribute__((visibility("default")))
#define OPW_UNTRACED __attribute__((no_sanitize("thread")))

#define __global__ OPW_KERNEL
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
#define __cluster_dims__(...)

#define __CUDACC__ 1
#define __CUDA_ARCH_LIST__ 900
#define CUDART_VERSION 12040
#define CUDA_VERSION 12040

namespace opw {

// Numbers of the calling thread (its index) and of its block (index, block's size, grid's size; x, y
// and z of each). They stay the same for as long as a thread lives: hence const, so that a compiler
// asks for each once. One scalar a call, because compilers do not remember structures.
OPW_API __attribute__((const)) unsigned thread_number(int which) noexcept;
OPW_API __attribute__((const)) unsigned block_number(int which) noexcept;

__attribute__((always_inline)) inline uint3 thread_index() {
    return uint3{thread_number(0), thread_number(1), thread_number(2)};
}
__attribute__((always_inline)) inline uint3 block_index() {
    return uint3{block_number(0), block_number(1), block_number(2)};
}
__attribute__((always_inline)) inline dim3 block_size() {
    return dim3(block_number(3), block_number(4), block_number(5));
}
__attribute__((always_inline)) inline dim3 grid_size() {
    return dim3(block_number(6), block_number(7), block_number(8));
}

// The first thing in a kernel: what came before it (copying its arguments) was the host's doing.
OPW_API void enter_kernel();
OPW_API OPW_ONE_CALL void block_barrier();
OPW_API OPW_ONE_CALL int block_barrier_count(int predicate);
OPW_API OPW_ONE_CALL int block_barrier_and(int predicate);
OPW_API OPW_ONE_CALL int block_barrier_or(int predicate);
OPW_API OPW_ONE_CALL void grid_barrier();
OPW_API bool grid_is_cooperative();

enum class Scope : int { block, device, system };
OPW_API void fence(Scope scope);

// Shared memory of the calling thread's block. A slot is one __shared__ declaration.
struct SharedSlot {
    const char* name;
    std::size_t size;
    std::size_t alignment;
    const char* file;
    int line;
    int id;  // given by the core at the first use, 0 before
};
OPW_API __attribute__((pure)) void* shared(SharedSlot* slot);
OPW_API __attribute__((const)) void* dynamic_shared() noexcept;
OPW_API unsigned dynamic_shared_size();

// An array that a function declares, announced behind its declaration. Knowing of it keeps the array
// in memory, so that reads of elements that nobody wrote can be seen. A device keeps it in registers
// unless it is `indexed` by what is not known when compiled.
OPW_API void local_begins(void* array, std::size_t size, const char* name, bool indexed, bool written);
OPW_API void local_ends() noexcept;
struct LocalArray {
    LocalArray(const LocalArray&) = delete;
    LocalArray(const volatile void* array, std::size_t size, const char* name, bool indexed, bool written) {
        local_begins(const_cast<void*>(array), size, name, indexed, written);
    }
    ~LocalArray() { local_ends(); }
};
// Objects of classes are left alone: what of one is never read, its copies read too.
template <class T> struct LocalScalar {
    LocalScalar(const LocalScalar&) = delete;
    LocalScalar(T& variable, const char* name) {
        if constexpr (std::is_scalar_v<T>) local_begins(const_cast<std::remove_cv_t<T>*>(&variable), sizeof(T), name, false, false);
    }
    ~LocalScalar() {
        if constexpr (std::is_scalar_v<T>) local_ends();
    }
};
// What an optimiser must take for changed here.
template <class... T> __attribute__((always_inline)) inline void keep(T&... variables) {
    [[maybe_unused]] const auto one = [](auto& variable) __attribute__((always_inline)) {
        if constexpr (std::is_scalar_v<std::remove_reference_t<decltype(variable)>>) asm volatile("" : "+m"(variable));
    };
    (one(variables), ...);
}
// A variable's value, whether or not it has one.
template <class T> __attribute__((noinline)) OPW_UNTRACED T unread(const T& variable) {
    const T* where = &variable;
    asm("" : "+r"(where));  // or the caller would be made to read it, and be traced
    return *where;
}

// Clang traces no access to an array that it sees to be local: it gets a reference from nowhere.
#if defined(__clang__)
template <class A> __attribute__((always_inline)) inline A& hidden(A& array) {
    A* where = &array;
    if constexpr (!std::is_class_v<A>) asm("" : "+r"(where));
    return *where;
}
#define OPW_ARRAY(name) opw_array_##name
#define OPW_HIDDEN(name) auto& name = ::opw::hidden(opw_array_##name);
#else
#define OPW_ARRAY(name) name
#define OPW_HIDDEN(name)
#endif

// Which way a thread goes at an if or a loop; counted programs are compiled with OPW_COUNTED.
OPW_API OPW_ONE_CALL bool branch(bool taken);
#if defined(OPW_COUNTED)
#define OPW_BRANCH(...) (::opw::branch(static_cast<bool>((__VA_ARGS__))))
#else
#define OPW_BRANCH(...) __VA_ARGS__
#endif

enum class WarpOperation : int {
    sync, active, shuffle, shuffle_up, shuffle_down, shuffle_xor, ballot, all, any, match_any,
    match_all, add, min, max, min_signed, max_signed, bit_and, bit_or, bit_xor
};
// One warp-wide operation. `value` goes in and the lane's result comes out; `source` is the lane,
// distance or mask of a shuffle within groups of `width`; returns the operation's second result.
OPW_API OPW_ONE_CALL unsigned long long warp(WarpOperation operation, unsigned mask, unsigned long long value,
                                int source = 0, int width = 32, int* second = nullptr);

OPW_API unsigned lane_index();
OPW_API long long clock();
OPW_API void sleep(unsigned nanoseconds);
[[noreturn]] OPW_API void trap();
OPW_API int print(const char* format, ...) __attribute__((format(printf, 1, 2)));
OPW_API void* copy_bytes(void* to, const void* from, std::size_t size);
OPW_API void* move_bytes(void* to, const void* from, std::size_t size);
OPW_API void* set_bytes(void* to, int value, std::size_t size);
OPW_API void* device_malloc(std::size_t size);
OPW_API void device_free(void* memory);

template <class T> inline T shuffle(WarpOperation operation, unsigned mask, T value, int source,
                                    int width) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    bits = warp(operation, mask, bits, source, width);
    T result;
    __builtin_memcpy(static_cast<void*>(&result), &bits, sizeof result);
    return result;
}

}  // namespace opw

#define threadIdx (::opw::thread_index())
#define blockIdx (::opw::block_index())
#define blockDim (::opw::block_size())
#define gridDim (::opw::grid_size())
constexpr int warpSize = 32;

#define __syncthreads ::opw::block_barrier
#define __syncthreads_count ::opw::block_barrier_count
#define __syncthreads_and ::opw::block_barrier_and
#define __syncthreads_or ::opw::block_barrier_or
#define __threadfence() ::opw::fence(::opw::Scope::device)
#define __threadfence_block() ::opw::fence(::opw::Scope::block)
#define __threadfence_system() ::opw::fence(::opw::Scope::system)
#define __syncwarp(...) ::opw::sync_warp(__VA_ARGS__)

#define OPW_INLINE __attribute__((always_inline)) inline

namespace opw {
OPW_INLINE void sync_warp(unsigned mask = 0xffffffffu) { warp(WarpOperation::sync, mask, 0); }
}  // namespace opw

OPW_INLINE unsigned __activemask() {
    return static_cast<unsigned>(::opw::warp(::opw::WarpOperation::active, 0, 0));
}

#define OPW_SHUFFLE(name, operation, last)                                                       \
    template <class T> OPW_INLINE T name(unsigned mask, T value, last, int width = 32) {         \
        return ::opw::shuffle(::opw::WarpOperation::operation, mask, value,                      \
                              static_cast<int>(source), width);                                  \
    }
OPW_SHUFFLE(__shfl_sync, shuffle, int source)
OPW_SHUFFLE(__shfl_up_sync, shuffle_up, unsigned source)
OPW_SHUFFLE(__shfl_down_sync, shuffle_down, unsigned source)
OPW_SHUFFLE(__shfl_xor_sync, shuffle_xor, int source)
#undef OPW_SHUFFLE

OPW_INLINE unsigned __ballot_sync(unsigned mask, int predicate) {
    return static_cast<unsigned>(::opw::warp(::opw::WarpOperation::ballot, mask, predicate != 0));
}
OPW_INLINE int __all_sync(unsigned mask, int predicate) {
    return static_cast<int>(::opw::warp(::opw::WarpOperation::all, mask, predicate != 0));
}
OPW_INLINE int __any_sync(unsigned mask, int predicate) {
    return static_cast<int>(::opw::warp(::opw::WarpOperation::any, mask, predicate != 0));
}
template <class T> OPW_INLINE unsigned __match_any_sync(unsigned mask, T value) {
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    return static_cast<unsigned>(::opw::warp(::opw::WarpOperation::match_any, mask, bits));
}
template <class T> OPW_INLINE unsigned __match_all_sync(unsigned mask, T value, int* predicate) {
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    int same = 0;
    const unsigned long long found =
        ::opw::warp(::opw::WarpOperation::match_all, mask, bits, 0, 32, &same);
    *predicate = same;
    return static_cast<unsigned>(found);
}
#define OPW_REDUCE(name, T, operation)                                               \
    OPW_INLINE T name(unsigned mask, T value) {                                      \
        return static_cast<T>(::opw::warp(::opw::WarpOperation::operation, mask,     \
                                          static_cast<unsigned>(value)));            \
    }
OPW_REDUCE(__reduce_add_sync, unsigned, add)
OPW_REDUCE(__reduce_add_sync, int, add)
OPW_REDUCE(__reduce_min_sync, unsigned, min)
OPW_REDUCE(__reduce_min_sync, int, min_signed)
OPW_REDUCE(__reduce_max_sync, unsigned, max)
OPW_REDUCE(__reduce_max_sync, int, max_signed)
OPW_REDUCE(__reduce_and_sync, unsigned, bit_and)
OPW_REDUCE(__reduce_or_sync, unsigned, bit_or)
OPW_REDUCE(__reduce_xor_sync, unsigned, bit_xor)
#undef OPW_REDUCE

// Atomics. Each name exists for the device, for the block (_block) and for the system (_system).
#define OPW_ATOMIC(name, T)                   \
    OPW_API T name(T* address, T value);      \
    OPW_API T name##_block(T* address, T value);  \
    OPW_API T name##_system(T* address, T value);
#define OPW_ATOMIC_CAS(T)                                      \
    OPW_API T atomicCAS(T* address, T expected, T value);        \
    OPW_API T atomicCAS_block(T* address, T expected, T value);  \
    OPW_API T atomicCAS_system(T* address, T expected, T value);

OPW_ATOMIC(atomicAdd, int)
OPW_ATOMIC(atomicAdd, unsigned)
OPW_ATOMIC(atomicAdd, unsigned long long)
OPW_ATOMIC(atomicAdd, float)
OPW_ATOMIC(atomicAdd, double)
OPW_ATOMIC(atomicSub, int)
OPW_ATOMIC(atomicSub, unsigned)
OPW_ATOMIC(atomicExch, int)
OPW_ATOMIC(atomicExch, unsigned)
OPW_ATOMIC(atomicExch, unsigned long long)
OPW_ATOMIC(atomicExch, float)
OPW_ATOMIC(atomicMin, int)
OPW_ATOMIC(atomicMin, unsigned)
OPW_ATOMIC(atomicMin, long long)
OPW_ATOMIC(atomicMin, unsigned long long)
OPW_ATOMIC(atomicMax, int)
OPW_ATOMIC(atomicMax, unsigned)
OPW_ATOMIC(atomicMax, long long)
OPW_ATOMIC(atomicMax, unsigned long long)
OPW_ATOMIC(atomicInc, unsigned)
OPW_ATOMIC(atomicDec, unsigned)
OPW_ATOMIC(atomicAnd, int)
OPW_ATOMIC(atomicAnd, unsigned)
OPW_ATOMIC(atomicAnd, unsigned long long)
OPW_ATOMIC(atomicOr, int)
OPW_ATOMIC(atomicOr, unsigned)
OPW_ATOMIC(atomicOr, unsigned long long)
OPW_ATOMIC(atomicXor, int)
OPW_ATOMIC(atomicXor, unsigned)
OPW_ATOMIC(atomicXor, unsigned long long)
OPW_ATOMIC_CAS(int)
OPW_ATOMIC_CAS(unsigned)
OPW_ATOMIC_CAS(unsigned long long)
OPW_ATOMIC_CAS(unsigned short)
#undef OPW_ATOMIC
#undef OPW_ATOMIC_CAS

template <class T> OPW_INLINE T __ldg(const T* address) { return *address; }
template <class T> OPW_INLINE T __ldca(const T* address) { return *address; }
template <class T> OPW_INLINE T __ldcg(const T* address) { return *address; }
template <class T> OPW_INLINE T __ldcs(const T* address) { return *address; }
template <class T> OPW_INLINE T __ldlu(const T* address) { return *address; }
template <class T> OPW_INLINE T __ldcv(const T* address) {
    return *static_cast<const volatile T*>(address);
}
template <class T> OPW_INLINE void __stwb(T* address, T value) { *address = value; }
template <class T> OPW_INLINE void __stcg(T* address, T value) { *address = value; }
template <class T> OPW_INLINE void __stcs(T* address, T value) { *address = value; }
template <class T> OPW_INLINE void __stwt(T* address, T value) { *address = value; }

OPW_INLINE long long clock64() { return ::opw::clock(); }
OPW_INLINE unsigned long long globaltimer_ns() {
    return static_cast<unsigned long long>(::opw::clock());
}
OPW_INLINE void __nanosleep(unsigned nanoseconds) { ::opw::sleep(nanoseconds); }
[[noreturn]] OPW_INLINE void __trap() { ::opw::trap(); }
OPW_INLINE unsigned __laneid() { return ::opw::lane_index(); }
