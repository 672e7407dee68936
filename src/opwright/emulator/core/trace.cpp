// The compiler's calls before every memory access, and whose memory each address is.
#include "trace.h"

namespace opw::core {

namespace {

void host_access(uintptr_t address, uint32_t size, unsigned flags, uintptr_t pc) {
    if (!heap.contains(address)) return;
    Allocation* const allocation = heap.at(address);
    if (allocation && allocation->host_may_touch() && !allocation->freed && address + size <= allocation->high) {
        for (Observer* o : observers.all) o->host_accessed(*allocation, address, size, flags, pc);
        return;
    }
    Report r;
    r.kind = "host-access";
    r.pc = pc;
    r.thread = "host";
    r.message = std::string(flags & is_write ? "write" : "read") + " of " + std::to_string(size) + " bytes by host code ";
    r.message += !allocation ? "beside any device allocation"
                             : allocation->freed ? "in " + allocation->name + ", which was freed"
                             : allocation->host_may_touch() ? "past the end of " + allocation->name
                             : "in device memory " + allocation->name + "; copy it with cudaMemcpy";
    report(r);
}

}  // namespace

// Never destroyed: host threads may still be at work when the program exits.
Heap& heap = *new Heap;
Variables& variables = *new Variables;
Sites& sites = *new Sites;

const Site& site(uint32_t index) { return sites.get(index); }
uint32_t site_at(uintptr_t pc, unsigned flags, uint32_t size) { return sites.number(pc, flags, size); }
bool in_program_text(uintptr_t pc) { return pc - image().text_low < image().text_high - image().text_low; }
bool in_host_data(uintptr_t address) {
    const Segment* segment = image().at(address);
    return segment && segment->writable;
}

void classify_other(Access& a) {
    if (stacks.contains(a.address)) {
        const Thread& t = *a.thread;
        a.space = Space::local;
        a.array_of_constants = a.address - t.stack_low < t.stack_high - t.stack_low;  // nothing is known against it
        for (size_t i = t.locals_alive; i-- > 0 && !a.allocation;) {
            Allocation& array = t.locals[i]->array;
            if (a.address >= array.low && a.address < array.high) a.allocation = &array;
        }
        return;
    }
    if (Allocation* variable = variables.at(a.address)) {
        a.space = variable->kind == Allocation::Kind::constant_variable ? Space::constant : Space::global;
        a.allocation = variable;
        return;
    }
    const Segment* segment = image().at(a.address);
    a.array_of_constants = segment && !segment->writable && !(a.flags & is_write) && !variables.in_gap(a.address);
    return;
}


AccessHooks hooks;

namespace {

constexpr int size_index(uint32_t size) { return size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : size == 8 ? 3 : 4; }

inline __attribute__((always_inline)) bool uninteresting(const Thread& t, uintptr_t address) {
    return address - t.stack_low < t.stack_high - t.stack_low && address - t.locals_low >= t.locals_span;
}

}  // namespace

// One access of a device thread; returns when it may be made.
void event(Thread& t, uintptr_t address, uint32_t size, unsigned flags, uintptr_t pc) {
    t.at(pc);
    if (uninteresting(t, address)) return;
    // Before the access is looked at: what is seen and what is then done are one step for other fibers.
    if (t.budget <= 0) give_way(t);
    t.budget -= 1;
    if (flags & (is_atomic | is_volatile)) {
        t.budget -= waiting_cost;
        ++t.spins;
    }
    if (hooks.any && !hooks.any(t, address, size, flags, pc)) stop_here(t);
}

template <uint32_t size, unsigned flags>
inline __attribute__((always_inline)) void traced_plain(void* place, void* return_address) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(place), pc = reinterpret_cast<uintptr_t>(return_address);
    const Worker* w = current_worker;
    if (!w || !w->current) return host_access(address, size, flags, pc);
    Thread& t = *w->current;
    t.at(pc);
    if (uninteresting(t, address)) return;
    if (--t.budget <= 0) give_way(t);
    const auto hook = (flags & is_write ? hooks.write : hooks.read)[size_index(size)];
    if (hook ? !hook(t, address, pc) : hooks.any && !hooks.any(t, address, size, flags, pc)) stop_here(t);
}

void traced(void* address, uint32_t size, unsigned flags, void* pc) {
    const Worker* w = current_worker;
    if (w && w->current) {
        event(*w->current, reinterpret_cast<uintptr_t>(address), size, flags, reinterpret_cast<uintptr_t>(pc));
    } else {
        host_access(reinterpret_cast<uintptr_t>(address), size, flags, reinterpret_cast<uintptr_t>(pc));
    }
}

// A structure is moved in the largest pieces that its size and place allow.
void traced_range(uintptr_t address, size_t size, unsigned flags, void* pc) {
    const size_t low_bit = (address | size) & -(address | size);
    const size_t piece = std::min<size_t>(low_bit ? low_bit : 16, 16);
    for (size_t i = 0; i < size; i += piece) {
        traced(reinterpret_cast<void*>(address + i), static_cast<uint32_t>(piece), flags, pc);
    }
}

}  // namespace opw::core

#define OPW_CALLER __builtin_return_address(0)
#define OPW_TRACE(size)                                                                                        \
    OPW_API void __tsan_read##size(void* a) { opw::core::traced_plain<size, opw::core::is_read>(a, OPW_CALLER); }    \
    OPW_API void __tsan_write##size(void* a) { opw::core::traced_plain<size, opw::core::is_write>(a, OPW_CALLER); }  \
    OPW_API void __tsan_unaligned_read##size(void* a) { opw::core::traced(a, size, opw::core::is_read, OPW_CALLER); }    \
    OPW_API void __tsan_unaligned_write##size(void* a) { opw::core::traced(a, size, opw::core::is_write, OPW_CALLER); }  \
    OPW_API void __tsan_volatile_read##size(void* a) {                                                         \
        opw::core::traced(a, size, opw::core::is_read | opw::core::is_volatile, OPW_CALLER);                   \
    }                                                                                                          \
    OPW_API void __tsan_volatile_write##size(void* a) {                                                        \
        opw::core::traced(a, size, opw::core::is_write | opw::core::is_volatile, OPW_CALLER);                  \
    }                                                                                                          \
    OPW_API void __tsan_unaligned_volatile_read##size(void* a) {                                               \
        opw::core::traced(a, size, opw::core::is_read | opw::core::is_volatile, OPW_CALLER);                   \
    }                                                                                                          \
    OPW_API void __tsan_unaligned_volatile_write##size(void* a) {                                              \
        opw::core::traced(a, size, opw::core::is_write | opw::core::is_volatile, OPW_CALLER);                  \
    }

extern "C" {
OPW_TRACE(1)
OPW_TRACE(2)
OPW_TRACE(4)
OPW_TRACE(8)
OPW_TRACE(16)
OPW_API void __tsan_read_range(void* a, unsigned long n) {
    opw::core::traced_range(reinterpret_cast<uintptr_t>(a), n, opw::core::is_read, OPW_CALLER);
}
OPW_API void __tsan_write_range(void* a, unsigned long n) {
    opw::core::traced_range(reinterpret_cast<uintptr_t>(a), n, opw::core::is_write, OPW_CALLER);
}
OPW_API void __tsan_init() {}
OPW_API void __tsan_func_entry(void*) {}
OPW_API void __tsan_func_exit() {}
OPW_API void __tsan_vptr_update(void**, void*) {}
OPW_API void __tsan_vptr_read(void**) {}
OPW_API void* __tsan_memcpy(void* to, const void* from, unsigned long n) { return opw::copy_bytes(to, from, n); }
OPW_API void* __tsan_memmove(void* to, const void* from, unsigned long n) { return opw::move_bytes(to, from, n); }
OPW_API void* __tsan_memset(void* to, int value, unsigned long n) { return opw::set_bytes(to, value, n); }

struct OpwSourceLocation {
    const char* file;
    unsigned line, column;
};
struct OpwType {
    unsigned short kind, info;
    char name[1];
};
struct OpwOutOfBounds {
    OpwSourceLocation where;
    const OpwType* array;
    const OpwType* index;
};
// An index beyond an array's declared type: how arrays in registers or local memory are checked.
OPW_API void __ubsan_handle_out_of_bounds(OpwOutOfBounds* data, void* index) {
    using namespace opw::core;
    Worker* w = current_worker;
    Thread* t = w ? w->current : nullptr;
    long long value = static_cast<long long>(reinterpret_cast<uintptr_t>(index));
    const unsigned bits = 1u << (data->index->info >> 1);
    if (bits < 64 && (data->index->info & 1)) {
        value = static_cast<long long>(static_cast<unsigned long long>(value) << (64 - bits)) >> (64 - bits);
    }
    std::string type = data->array->name;  // "'int [8]'", which clang spells without the space
    const size_t bracket = type.find('[');
    if (bracket != std::string::npos && bracket && type[bracket - 1] != ' ') type.insert(bracket, " ");
    Report r;
    r.kind = "out-of-bounds";
    r.file = data->where.file ? data->where.file : "";
    r.line = static_cast<int>(data->where.line);
    r.message = "index " + std::to_string(value) + " of an array of type " + type + ", which ends before it";
    if (value < 0) r.message = "index " + std::to_string(value) + " of an array of type " + type + ", before its start";
    r.details = {{"column", std::to_string(data->where.column)}, {"index", std::to_string(value)}, {"type", type}};
    r.thread = t ? describe(*t) : "host";
    report(r);
    if (t) stop_here(*t);
}
OPW_API void __ubsan_handle_out_of_bounds_abort(OpwOutOfBounds* data, void* index) {
    __ubsan_handle_out_of_bounds(data, index);
}
}  // extern "C"
#undef OPW_TRACE
