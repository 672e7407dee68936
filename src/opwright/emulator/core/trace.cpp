// The compiler's calls before every memory access, and whose memory each address is.
#include <link.h>

#include "grid.h"

namespace opw::core {

namespace {

struct Segment {
    uintptr_t low, high;
    bool writable;
};

// The program's own segments: where its text is, which data is constant, which is the host's.
struct Image {
    uintptr_t text_low = 0, text_high = 0;
    std::vector<Segment> data;
    Image() {
        dl_iterate_phdr(
            [](dl_phdr_info* info, size_t, void* raw) {
                Image& image = *static_cast<Image*>(raw);
                const bool program = image.text_high == 0;
                for (int i = 0; i < info->dlpi_phnum; ++i) {
                    const ElfW(Phdr)& h = info->dlpi_phdr[i];
                    if (h.p_type != PT_LOAD) continue;
                    const uintptr_t low = info->dlpi_addr + h.p_vaddr;
                    if (program && (h.p_flags & PF_X)) {
                        image.text_low = low;
                        image.text_high = low + h.p_memsz;
                    }
                    image.data.push_back({low, low + h.p_memsz, (h.p_flags & PF_W) != 0});
                }
                return 0;
            },
            this);
    }
    const Segment* at(uintptr_t address) const {
        for (const Segment& s : data) if (address >= s.low && address < s.high) return &s;
        return nullptr;
    }
};
const Image& image() {
    static const Image* const read = new Image;
    return *read;
}

// Sites are numbered as they are first met; a table over the text finds the number in one load.
class Sites {
public:
    Sites() {
        size_ = image().text_high - image().text_low;
        table_ = reinterpret_cast<std::atomic<uint16_t>*>(
            mmap(nullptr, size_ * sizeof(uint16_t), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        low_ = image().text_low;
        all_.resize(65536);
    }
    uint32_t number(uintptr_t pc, unsigned flags, uint32_t size) {
        const uintptr_t at = pc - low_;
        if (at >= size_) return 0;
        const uint16_t known = table_[at].load(std::memory_order_acquire);
        return known ? known : add(at, pc, flags, size);
    }
    const Site& get(uint32_t index) const { return all_[index]; }
    uint32_t count() const { return count_; }

private:
    uint32_t add(uintptr_t at, uintptr_t pc, unsigned flags, uint32_t size) {
        const std::lock_guard<std::mutex> hold(mutex_);
        if (const uint16_t known = table_[at].load()) return known;
        if (count_ + 1 >= all_.size()) return 0;
        all_[++count_] = Site{pc, flags, size};
        table_[at].store(static_cast<uint16_t>(count_), std::memory_order_release);
        return count_;
    }
    std::mutex mutex_;
    std::atomic<uint16_t>* table_ = nullptr;
    uintptr_t low_ = 0;
    size_t size_ = 0;
    uint32_t count_ = 0;
    std::vector<Site> all_;
};
Sites& sites() {
    static Sites* const all = new Sites;
    return *all;
}

Access classify(Thread& t, uintptr_t address, uint32_t size, unsigned flags, uint32_t site) {
    Access a{&t, address, size, flags, site, Space::other, nullptr, false};
    const Block& b = *t.block;
    if (address - b.shared_low < shared_span) {
        a.space = Space::shared;
        a.allocation = current_worker->slot->by_granule[(address - b.shared_low) / shared_granule];
        return a;
    }
    if (heap().contains(address)) {
        a.space = Space::global;
        a.allocation = heap().at(address);
        return a;
    }
    if (all_stacks().contains(address)) {
        a.space = Space::local;
        return a;
    }
    if (Allocation* variable = variables().at(address)) {
        a.space = variable->kind == Allocation::Kind::constant_variable ? Space::constant : Space::global;
        a.allocation = variable;
        return a;
    }
    const Segment* segment = image().at(address);
    a.array_of_constants = segment && !segment->writable && !(flags & is_write);
    return a;
}

void host_access(uintptr_t address, uint32_t size, unsigned flags, uintptr_t pc) {
    if (!heap().contains(address)) return;
    const Allocation* allocation = heap().at(address);
    if (allocation && allocation->host_may_touch() && !allocation->freed && address + size <= allocation->high) return;
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

Heap& heap() {
    static Heap* const all = new Heap;
    return *all;
}
Variables& variables() {
    static Variables* const all = new Variables;
    return *all;
}
const Site& site(uint32_t index) { return sites().get(index); }
uint32_t site_at(uintptr_t pc, unsigned flags, uint32_t size) { return sites().number(pc, flags, size); }
bool in_program_text(uintptr_t pc) { return pc - image().text_low < image().text_high - image().text_low; }
bool in_host_data(uintptr_t address) {
    const Segment* segment = image().at(address);
    return segment && segment->writable;
}

// One access of a device thread; returns when it may be made.
__attribute__((noinline)) void event(Thread& t, uintptr_t address, uint32_t size, unsigned flags, uintptr_t pc) {
    t.last_pc = pc;
    if (address - t.stack_low < t.stack_high - t.stack_low) return;
    const LaunchRequest& request = *current_worker->launch->request;
    if (address - reinterpret_cast<uintptr_t>(request.arguments) < request.arguments_size) return;
    if (on_access && !on_access(classify(t, address, size, flags, sites().number(pc, flags, size)))) stop_here(t);
    t.budget -= 1;
    if (flags & (is_atomic | is_volatile)) {
        t.budget -= waiting_cost;
        ++t.spins;
    }
    if (t.budget <= 0) give_way(t);
}

inline void traced(void* address, uint32_t size, unsigned flags, void* pc) {
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
    OPW_API void __tsan_read##size(void* a) { opw::core::traced(a, size, opw::core::is_read, OPW_CALLER); }    \
    OPW_API void __tsan_write##size(void* a) { opw::core::traced(a, size, opw::core::is_write, OPW_CALLER); }  \
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
    Report r;
    r.kind = "out-of-bounds";
    r.file = data->where.file ? data->where.file : "";
    r.line = static_cast<int>(data->where.line);
    r.message = "index " + std::to_string(value) + " of an array of type " + data->array->name;
    r.details = {{"column", std::to_string(data->where.column)}, {"index", std::to_string(value)}, {"type", data->array->name}};
    r.thread = t ? describe(*t) : "host";
    report(r);
    if (t) stop_here(*t);
}
OPW_API void __ubsan_handle_out_of_bounds_abort(OpwOutOfBounds* data, void* index) {
    __ubsan_handle_out_of_bounds(data, index);
}
}  // extern "C"
#undef OPW_TRACE
