// Where accesses come from in the program, and whose memory each address is: what runs on every one.
#pragma once

#include <link.h>

#include "grid.h"

namespace opw::core {

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
inline const Image& image() {
    static const Image* const read = new Image;
    return *read;
}

// Sites are numbered as they are first met; a table over the text finds the number in one load.
class Sites {
public:
    Sites() {
        size_ = image().text_high - image().text_low;
        table_ = reinterpret_cast<std::atomic<uint16_t>*>(
            mmap(nullptr, size_ * sizeof(uint16_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        low_ = image().text_low;
        all_.resize(65536);
    }
    __attribute__((always_inline)) uint32_t number(uintptr_t pc, unsigned flags, uint32_t size) {
        const uintptr_t at = pc - low_;
        if (at >= size_) return 0;
        const uint16_t known = table_[at].load(std::memory_order_acquire);
        return __builtin_expect(known != 0, 1) ? known : add(at, pc, flags, size);
    }
    const Site& get(uint32_t index) const { return all_[index]; }
    uint32_t count() const { return count_; }

private:
    __attribute__((noinline, cold)) uint32_t add(uintptr_t at, uintptr_t pc, unsigned flags, uint32_t size) {
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
extern Sites& sites;

// Stacks, variables and the program's own data: rare enough to be looked up one by one.
void classify_other(Access& a);

inline __attribute__((always_inline)) Access classify(Thread& t, uintptr_t address, uint32_t size, unsigned flags, uint32_t site) {
    Access a{&t, address, size, flags, site, Space::other, nullptr, false};
    const Block& b = *t.block;
    if (__builtin_expect(address - b.shared_low < shared_span, 1)) {
        a.space = Space::shared;
        a.allocation = current_worker->slot->by_granule[(address - b.shared_low) / shared_granule];
        return a;
    }
    if (heap.contains(address)) {
        a.space = Space::global;
        a.allocation = heap.at(address);
        return a;
    }
    classify_other(a);
    return a;
}

}  // namespace opw::core
