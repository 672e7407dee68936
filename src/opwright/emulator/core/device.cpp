// What device code calls: indices, barriers, warp functions, atomics, printing, memory functions.
#include <chrono>
#include <cstdarg>

#include "grid.h"

namespace opw::core {

inline Thread& here() { return *current_worker->current; }
inline Thread* device_thread() { return current_worker ? current_worker->current : nullptr; }
inline uintptr_t address_of(const void* p) { return reinterpret_cast<uintptr_t>(p); }

static void at_barrier(int kind, int predicate, void* pc) {
    Thread& t = here();
    t.barrier_kind = kind;
    t.predicate = predicate;
    wait_here(t, Thread::State::barrier, address_of(pc));
}

static void observe_fence(Scope scope) {
    Thread& t = here();
    for (Observer* o : observers.all) o->fence(t, scope);
}

// The compiler's atomics carry their order; a fence beside a relaxed one is what the order means.
static void order_before(int order) {
    if (device_thread() && order >= __ATOMIC_RELEASE) observe_fence(Scope::device);
}
static void order_after(int order) {
    const bool acquires = order == __ATOMIC_CONSUME || order == __ATOMIC_ACQUIRE || order >= __ATOMIC_ACQ_REL;
    if (device_thread() && acquires) observe_fence(Scope::device);
}

// Applies `change` to *address as one atomic step; host threads share the memory.
template <class T, class Change>
inline T atomically(T* address, unsigned scope, void* pc, const Change& change) {
    Thread* t = device_thread();
    if (t) event(*t, address_of(address), sizeof(T), is_read | is_write | is_atomic | scope, address_of(pc));
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
    Bits* place = reinterpret_cast<Bits*>(address);
    Bits old = __atomic_load_n(place, __ATOMIC_SEQ_CST);
    for (;;) {
        T before;
        __builtin_memcpy(static_cast<void*>(&before), &old, sizeof before);
        const T after = change(before);
        Bits wanted;
        __builtin_memcpy(&wanted, &after, sizeof wanted);
        if (__atomic_compare_exchange_n(place, &old, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return before;
    }
}

}  // namespace opw::core

namespace opw {

using namespace core;

unsigned thread_number(int which) noexcept {
    const uint3& index = here().index;
    return which == 0 ? index.x : which == 1 ? index.y : index.z;
}
unsigned block_number(int which) noexcept { return here().block->numbers[which]; }

void enter_kernel() {
    Thread& t = here();
    const Fiber& fiber = *static_cast<Fiber*>(t.fiber);
    t.stack_low = fiber.low;
    t.stack_high = fiber.high;
    t.last_pc = t.highest_pc = 0;
}
void block_barrier() { at_barrier(0, 0, OPW_CALLER); }
int block_barrier_count(int p) { at_barrier(1, p, OPW_CALLER); return here().result; }
int block_barrier_and(int p) { at_barrier(2, p, OPW_CALLER); return here().result; }
int block_barrier_or(int p) { at_barrier(3, p, OPW_CALLER); return here().result; }
bool grid_is_cooperative() { return here().block->launch->cooperative; }

void grid_barrier() {
    Thread& t = here();
    if (!t.block->launch->cooperative) {
        Report r;
        r.kind = "invalid-grid-sync";
        r.pc = address_of(OPW_CALLER);
        r.thread = describe(t);
        r.message = "grid-wide barrier in a kernel that was not launched with cudaLaunchCooperativeKernel";
        report(r);
        stop_here(t);
    }
    wait_here(t, Thread::State::grid, address_of(OPW_CALLER));
}

void fence(Scope scope) { observe_fence(scope); }

void* shared(SharedSlot* slot) {
    static std::mutex mutex;
    static int made = 0;
    Slot& s = *current_worker->slot;
    int id = __atomic_load_n(&slot->id, __ATOMIC_ACQUIRE);
    if (!id) {
        const std::lock_guard<std::mutex> hold(mutex);
        id = slot->id ? slot->id : ++made;
        __atomic_store_n(&slot->id, id, __ATOMIC_RELEASE);
    }
    const size_t place = static_cast<size_t>(id);
    if (place >= s.by_declaration.size()) s.by_declaration.resize(place + 16);
    if (Allocation* known = s.by_declaration[place]) return reinterpret_cast<void*>(known->low);
    const size_t alignment = std::max(slot->alignment, shared_granule);
    const uintptr_t low = (s.next_shared + alignment - 1) / alignment * alignment;
    const size_t gap = std::max<size_t>(slot->size, 1024);
    if (low + slot->size + gap > s.arena + shared_span) {
        Report r;
        r.kind = "shared-memory-limit";
        r.file = slot->file;
        r.line = slot->line;
        r.thread = describe(here());
        r.message = std::string("shared array ") + slot->name + " of " + std::to_string(slot->size) + " bytes exceeds any device";
        report(r);
        stop_here(here());
    }
    Allocation* object = place_shared(s, low, slot->size);
    object->name = slot->name;
    object->file = slot->file;
    object->line = slot->line;
    s.next_shared = low + slot->size + gap;
    s.by_declaration[place] = object;
    size_t total = 0, declared = 0;
    for (const Allocation& o : s.objects) {
        total += o.size();
        if (o.kind == Allocation::Kind::shared) declared += o.size();
    }
    RunningLaunch& launch = *current_worker->launch;
    size_t most = launch.shared_used.load();
    while (most < declared && !launch.shared_used.compare_exchange_weak(most, declared)) {}
    if ((declared > limits().shared_per_block || total > limits().shared_per_block_optin) && !launch.shared_reported.exchange(true)) {
        Report r;
        r.kind = "shared-memory-limit";
        r.file = slot->file;
        r.line = slot->line;
        r.message = launch.seen.kernel + " uses " + std::to_string(declared) + " bytes of declared and " +
                    std::to_string(total - declared) + " of dynamic shared memory; " + profile().name + " allows " +
                    std::to_string(limits().shared_per_block) + " declared and " +
                    std::to_string(limits().shared_per_block_optin) + " in all";
        report(r);
    }
    for (Observer* o : observers.all) o->shared_appears(s.block, *object);
    return reinterpret_cast<void*>(low);
}
void* dynamic_shared() noexcept { return reinterpret_cast<void*>(current_worker->slot->arena); }
unsigned dynamic_shared_size() { return static_cast<unsigned>(here().block->launch->shared); }

unsigned long long warp(WarpOperation operation, unsigned mask, unsigned long long value, int source, int width, int* second) {
    Thread& t = here();
    void* pc = OPW_CALLER;
    if (operation != WarpOperation::active && !(mask >> t.lane & 1)) {
        for (Observer* o : observers.all) o->lane_foreign(t, mask, address_of(pc));
        return value;
    }
    t.operation = static_cast<int>(operation);
    t.mask = mask;
    t.value = value;
    t.source = source;
    t.width = width;
    wait_here(t, Thread::State::warp, address_of(pc));
    if (second) *second = t.second;
    return t.value;
}

// Of the registers that a thread can have, 255 of 4 bytes.
constexpr size_t registers_hold = 255 * 4;

void local_begins(void* array, size_t size, const char* name, bool indexed, bool written) {
    Thread* t = device_thread();
    if (!t || !hooks.any) return;
    // Where little is left, what follows here would run over the end with a lock of the library's held.
    const uintptr_t end = static_cast<Fiber*>(t->fiber)->low;
    if (address_of(__builtin_frame_address(0)) - end < 16384) *reinterpret_cast<volatile char*>(end - 1) = 0;
    if (t->locals_alive == t->locals.size()) t->locals.push_back(new LocalArrays);
    LocalArrays& local = *t->locals[t->locals_alive];
    Allocation& a = local.array;
    local.low_before = t->locals_low;
    local.span_before = t->locals_span;
    a.kind = Allocation::Kind::local;
    a.low = address_of(array);
    a.high = a.low + size;
    a.name = name;
    a.indexed = indexed || size > registers_hold;
    for (Observer* o : observers.all) o->local_appears(a);
    if (written) for (Observer* o : observers.all) o->host_wrote(a, a.low, size);
    const uintptr_t low = t->locals_alive ? std::min(t->locals_low, a.low) : a.low;
    const uintptr_t high = t->locals_alive ? std::max(t->locals_low + t->locals_span, a.high) : a.high;
    t->locals_low = low;
    t->locals_span = high - low;
    ++t->locals_alive;
}
void local_ends() noexcept {
    Thread* t = device_thread();
    if (!t || !t->locals_alive) return;
    const LocalArrays& local = *t->locals[--t->locals_alive];
    t->locals_low = local.low_before;
    t->locals_span = local.span_before;
}

bool branch(bool taken) {
    if (Thread* const t = device_thread()) {
        for (Observer* o : observers.all) o->branched(*t, address_of(OPW_CALLER), taken);
    }
    return taken;
}

unsigned lane_index() { return here().lane; }
long long clock() {
    // Counts upwards; what a cycle is worth is unknown here.
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
void sleep(unsigned) {
    Thread& t = here();
    ++t.spins;
    t.spins += 16;
    give_way(t);
}
void trap() {
    Thread& t = here();
    Report r;
    r.kind = "trap";
    r.pc = address_of(OPW_CALLER);
    r.thread = describe(t);
    r.message = "the kernel called __trap()";
    report(r);
    current_worker->launch->aborted = true;
    stop_here(t);
    std::abort();
}

static int format_device(const char* format, va_list values) {
    va_list again;
    va_copy(again, values);
    char small[512];
    const int length = std::vsnprintf(small, sizeof small, format, values);
    if (length > 0) {
        std::string& out = current_worker->slot->output;
        if (static_cast<size_t>(length) < sizeof small) {
            out.append(small, static_cast<size_t>(length));
        } else {
            std::string large(static_cast<size_t>(length) + 1, '\0');
            std::vsnprintf(large.data(), large.size(), format, again);
            out.append(large.data(), static_cast<size_t>(length));
        }
        // Blocks print in order, unless one prints more than is worth keeping.
        if (out.size() > size_t{1} << 24) {
            const std::lock_guard<std::mutex> hold(current_worker->launch->mutex);
            std::fwrite(out.data(), 1, out.size(), stdout);
            out.clear();
        }
    }
    va_end(again);
    return length;
}
int print(const char* format, ...) {
    va_list values;
    va_start(values, format);
    const int length = device_thread() ? format_device(format, values) : std::vprintf(format, values);
    va_end(values);
    return length;
}

static void range(const void* p, size_t size, unsigned flags, void* pc) {
    if (size) traced_range(address_of(p), size, flags, pc);
}
void* copy_bytes(void* to, const void* from, size_t size) {
    range(from, size, is_read, OPW_CALLER);
    range(to, size, is_write, OPW_CALLER);
    return std::memcpy(to, from, size);
}
void* move_bytes(void* to, const void* from, size_t size) {
    range(from, size, is_read, OPW_CALLER);
    range(to, size, is_write, OPW_CALLER);
    return std::memmove(to, from, size);
}
void* set_bytes(void* to, int value, size_t size) {
    range(to, size, is_write, OPW_CALLER);
    return std::memset(to, value, size);
}

}  // namespace opw

#define OPW_ATOMIC(name, T, expression)                                                              \
    T name(T* address, T value) {                                                                    \
        return opw::core::atomically(address, 0, OPW_CALLER, [=](T old) -> T { (void)old; return expression; });        \
    }                                                                                                \
    T name##_system(T* address, T value) {                                                           \
        return opw::core::atomically(address, 0, OPW_CALLER, [=](T old) -> T { (void)old; return expression; });        \
    }                                                                                                \
    T name##_block(T* address, T value) {                                                            \
        return opw::core::atomically(address, opw::core::scope_block, OPW_CALLER, [=](T old) -> T { (void)old; return expression; }); \
    }
#define OPW_ATOMIC_CAS_SCOPE(T, name, scope)                                                          \
    T name(T* address, T expected, T value) {                                                        \
        return opw::core::atomically(address, opw::core::is_compare | (scope), OPW_CALLER,           \
                                     [=](T old) -> T { return old == expected ? value : old; });     \
    }
#define OPW_ATOMIC_CAS(T)                 \
    OPW_ATOMIC_CAS_SCOPE(T, atomicCAS, 0) \
    OPW_ATOMIC_CAS_SCOPE(T, atomicCAS_system, 0) \
    OPW_ATOMIC_CAS_SCOPE(T, atomicCAS_block, opw::core::scope_block)
OPW_ATOMIC(atomicAdd, int, static_cast<int>(static_cast<unsigned>(old) + static_cast<unsigned>(value)))
OPW_ATOMIC(atomicAdd, unsigned, old + value)
OPW_ATOMIC(atomicAdd, unsigned long long, old + value)
OPW_ATOMIC(atomicAdd, float, old + value)
OPW_ATOMIC(atomicAdd, double, old + value)
OPW_ATOMIC(atomicSub, int, static_cast<int>(static_cast<unsigned>(old) - static_cast<unsigned>(value)))
OPW_ATOMIC(atomicSub, unsigned, old - value)
OPW_ATOMIC(atomicExch, int, value)
OPW_ATOMIC(atomicExch, unsigned, value)
OPW_ATOMIC(atomicExch, unsigned long long, value)
OPW_ATOMIC(atomicExch, float, value)
OPW_ATOMIC(atomicMin, int, std::min(old, value))
OPW_ATOMIC(atomicMin, unsigned, std::min(old, value))
OPW_ATOMIC(atomicMin, long long, std::min(old, value))
OPW_ATOMIC(atomicMin, unsigned long long, std::min(old, value))
OPW_ATOMIC(atomicMax, int, std::max(old, value))
OPW_ATOMIC(atomicMax, unsigned, std::max(old, value))
OPW_ATOMIC(atomicMax, long long, std::max(old, value))
OPW_ATOMIC(atomicMax, unsigned long long, std::max(old, value))
OPW_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
OPW_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)
OPW_ATOMIC(atomicAnd, int, old & value)
OPW_ATOMIC(atomicAnd, unsigned, old & value)
OPW_ATOMIC(atomicAnd, unsigned long long, old & value)
OPW_ATOMIC(atomicOr, int, old | value)
OPW_ATOMIC(atomicOr, unsigned, old | value)
OPW_ATOMIC(atomicOr, unsigned long long, old | value)
OPW_ATOMIC(atomicXor, int, old ^ value)
OPW_ATOMIC(atomicXor, unsigned, old ^ value)
OPW_ATOMIC(atomicXor, unsigned long long, old ^ value)
OPW_ATOMIC_CAS(int)
OPW_ATOMIC_CAS(unsigned)
OPW_ATOMIC_CAS(unsigned long long)
OPW_ATOMIC_CAS(unsigned short)
#undef OPW_ATOMIC
#undef OPW_ATOMIC_CAS
#undef OPW_ATOMIC_CAS_SCOPE

// Two halves are added one by one: a pair is no single atomic on the device either.
__half atomicAdd(__half* address, __half value) {
    return opw::core::atomically(address, 0, OPW_CALLER, [=](__half old) { return old + value; });
}
__nv_bfloat16 atomicAdd(__nv_bfloat16* address, __nv_bfloat16 value) {
    return opw::core::atomically(address, 0, OPW_CALLER, [=](__nv_bfloat16 old) { return old + value; });
}
__half2 atomicAdd(__half2* address, __half2 value) {
    return opw::core::atomically(address, 0, OPW_CALLER, [=](const __half2& old) { return old + value; });
}
__nv_bfloat162 atomicAdd(__nv_bfloat162* address, __nv_bfloat162 value) {
    return opw::core::atomically(address, 0, OPW_CALLER, [=](const __nv_bfloat162& old) { return old + value; });
}

// The compiler's own atomics (std::atomic, __atomic_fetch_add) in traced code.
#define OPW_TSAN_ATOMIC(bits, T)                                                                               \
    OPW_API T __tsan_atomic##bits##_load(const volatile T* a, int order) {                                     \
        opw::core::traced(const_cast<T*>(a), sizeof(T), opw::core::is_read | opw::core::is_atomic, OPW_CALLER); \
        const T value = __atomic_load_n(a, __ATOMIC_SEQ_CST);                                                  \
        opw::core::order_after(order);                                                                         \
        return value;                                                                                          \
    }                                                                                                          \
    OPW_API void __tsan_atomic##bits##_store(volatile T* a, T v, int order) {                                  \
        opw::core::order_before(order);                                                                        \
        opw::core::traced(const_cast<T*>(a), sizeof(T), opw::core::is_write | opw::core::is_atomic, OPW_CALLER); \
        __atomic_store_n(a, v, __ATOMIC_SEQ_CST);                                                              \
    }                                                                                                          \
    OPW_TSAN_RMW(bits, T, exchange, exchange_n)                                                                \
    OPW_TSAN_RMW(bits, T, fetch_add, fetch_add)                                                                \
    OPW_TSAN_RMW(bits, T, fetch_sub, fetch_sub)                                                                \
    OPW_TSAN_RMW(bits, T, fetch_and, fetch_and)                                                                \
    OPW_TSAN_RMW(bits, T, fetch_or, fetch_or)                                                                  \
    OPW_TSAN_RMW(bits, T, fetch_xor, fetch_xor)                                                                \
    OPW_TSAN_CAS(bits, T, strong)                                                                              \
    OPW_TSAN_CAS(bits, T, weak)                                                                                \
    OPW_API T __tsan_atomic##bits##_compare_exchange_val(volatile T* a, T expected, T v, int order, int) {     \
        opw::core::order_before(order);                                                                        \
        opw::core::traced(const_cast<T*>(a), sizeof(T),                                                        \
                          opw::core::is_read | opw::core::is_write | opw::core::is_atomic, OPW_CALLER);        \
        __atomic_compare_exchange_n(a, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);               \
        opw::core::order_after(order);                                                                         \
        return expected;                                                                                       \
    }
#define OPW_TSAN_RMW(bits, T, name, builtin)                                                                   \
    OPW_API T __tsan_atomic##bits##_##name(volatile T* a, T v, int order) {                                    \
        opw::core::order_before(order);                                                                        \
        opw::core::traced(const_cast<T*>(a), sizeof(T),                                                        \
                          opw::core::is_read | opw::core::is_write | opw::core::is_atomic, OPW_CALLER);        \
        const T value = __atomic_##builtin(a, v, __ATOMIC_SEQ_CST);                                            \
        opw::core::order_after(order);                                                                         \
        return value;                                                                                          \
    }
#define OPW_TSAN_CAS(bits, T, name)                                                                            \
    OPW_API int __tsan_atomic##bits##_compare_exchange_##name(volatile T* a, T* expected, T v, int order, int) { \
        opw::core::order_before(order);                                                                        \
        opw::core::traced(const_cast<T*>(a), sizeof(T),                                                        \
                          opw::core::is_read | opw::core::is_write | opw::core::is_atomic, OPW_CALLER);        \
        const int done = __atomic_compare_exchange_n(a, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
        opw::core::order_after(order);                                                                         \
        return done;                                                                                           \
    }
extern "C" {
OPW_TSAN_ATOMIC(8, unsigned char)
OPW_TSAN_ATOMIC(16, unsigned short)
OPW_TSAN_ATOMIC(32, unsigned int)
OPW_TSAN_ATOMIC(64, unsigned long)
OPW_API void __tsan_atomic_thread_fence(int) {
    if (opw::core::device_thread()) opw::core::observe_fence(opw::Scope::device);
}
OPW_API void __tsan_atomic_signal_fence(int) {}

// What assert() ends in.
OPW_API void __assert_fail(const char* text, const char* file, unsigned line, const char* function) noexcept {
    using namespace opw::core;
    if (Thread* t = device_thread()) {
        Report r;
        r.kind = "assertion";
        r.file = file;
        r.line = static_cast<int>(line);
        r.thread = describe(*t);
        r.message = std::string("assertion failed: ") + text;
        report(r);
        stop_here(*t);
    }
    std::fflush(stdout);
    std::fprintf(stderr, "%s:%u: %s: Assertion `%s' failed.\n", file, line, function, text);
    std::abort();
}
}
#undef OPW_TSAN_ATOMIC
#undef OPW_TSAN_RMW
#undef OPW_TSAN_CAS
