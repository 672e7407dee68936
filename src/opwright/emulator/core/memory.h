// Where a device's memory lies in the host's address space, and whose each address is.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>

#include "hooks.h"

namespace opw::core {

// Device allocations lie in one reserved region, each on pages of its own with a gap at least as
// long as itself (up to 1 GiB) behind it. Addresses are never used twice, so an access past an end
// or after a free never meets somebody else's data.
class Heap {
public:
    static constexpr size_t span = size_t{1} << 41;
    static constexpr size_t page = 4096;
    static constexpr size_t largest_gap = size_t{1} << 30;

    Heap() {
        low_ = reserve(span, MAP_PRIVATE);
        map_ = reinterpret_cast<std::atomic<uint32_t>*>(reserve(span / page * sizeof(uint32_t)));
        mprotect(reinterpret_cast<void*>(map_), span / page * sizeof(uint32_t), PROT_READ | PROT_WRITE);
        by_number_ = reinterpret_cast<Allocation**>(reserve(limit * sizeof(Allocation*)));
        mprotect(by_number_, limit * sizeof(Allocation*), PROT_READ | PROT_WRITE);
        // Far inside, so that an index that overflowed an int still lands in the region.
        next_ = low_ + span / 8;
        allocations_.emplace_back();  // number 0 stands for "none"
    }

    bool contains(uintptr_t address) const { return address - low_ < span; }

    // The allocation on whose pages an address lies; null in the gaps.
    Allocation* at(uintptr_t address) const {
        const uint32_t number = map_[(address - low_) / page].load(std::memory_order_acquire);
        return number ? by_number_[number] : nullptr;
    }

    // Null when the address space or the host's memory is used up. The array begins `lead` bytes (less
    // than a page) behind a page's start.
    Allocation* allocate(size_t size, size_t lead = 0) {
        const std::lock_guard<std::mutex> hold(mutex_);
        const size_t pages = (std::max<size_t>(lead + size, 1) + page - 1) / page;
        const size_t gap = std::clamp(pages * page, size_t{1} << 16, largest_gap);
        if (next_ + pages * page + gap > low_ + span || allocations_.size() >= limit) return nullptr;
        if (mprotect(reinterpret_cast<void*>(next_), pages * page, PROT_READ | PROT_WRITE)) return nullptr;
        Allocation& made = allocations_.emplace_back();
        made.low = next_ + lead;
        made.high = made.low + size;
        const uint32_t number = static_cast<uint32_t>(allocations_.size() - 1);
        by_number_[number] = &made;
        for (size_t i = 0; i < pages; ++i) {
            map_[(next_ - low_) / page + i].store(number, std::memory_order_release);
        }
        next_ += pages * page + gap;
        return &made;
    }

    void release(Allocation& allocation) {
        const uintptr_t start = allocation.low & ~(page - 1);
        const size_t size = (std::max<size_t>(allocation.high - start, 1) + page - 1) / page * page;
        void* pages = reinterpret_cast<void*>(start);
        allocation.freed = true;
        // Gives the memory back and makes the host fault there.
        mmap(pages, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    }

    std::deque<Allocation>& all() { return allocations_; }

    static uintptr_t reserve(size_t bytes, int sharing = MAP_SHARED) {
        void* region = mmap(nullptr, bytes, PROT_NONE, sharing | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (region == MAP_FAILED) {
            std::perror("emulator: no address space for device memory");
            std::_Exit(125);
        }
        return reinterpret_cast<uintptr_t>(region);
    }

private:
    static constexpr size_t limit = size_t{1} << 22;
    std::mutex mutex_;
    uintptr_t low_ = 0;
    uintptr_t next_ = 0;
    std::atomic<uint32_t>* map_ = nullptr;
    std::deque<Allocation> allocations_;
    Allocation** by_number_ = nullptr;  // takes no room until it is used
};

// __device__, __constant__ and __managed__ variables: objects of the program itself.
class Variables {
public:
    Allocation* add(const Allocation& variable) {
        all_.push_back(variable);
        sorted_.clear();
        return &all_.back();
    }
    Allocation* at(uintptr_t address) const {
        const auto after = std::upper_bound(sorted_.begin(), sorted_.end(), address,
                                            [](uintptr_t a, const Allocation* v) { return a < v->low; });
        if (after != sorted_.begin() && address < (*(after - 1))->high) return *(after - 1);
        return nullptr;
    }
    void add_gap(uintptr_t low, uintptr_t high) { gaps_.emplace_back(low, high); }
    bool in_gap(uintptr_t address) const {
        for (const auto& [low, high] : gaps_) if (address >= low && address < high) return true;
        return false;
    }
    Allocation* near(uintptr_t address) const {
        Allocation* best = nullptr;
        uintptr_t distance = size_t{1} << 21;  // the largest gap, and the variables beside it
        for (Allocation* v : sorted_) {
            const uintptr_t d = address < v->low ? v->low - address : address - v->high;
            if (d < distance) {
                distance = d;
                best = v;
            }
        }
        return best;
    }
    void sort() {
        if (sorted_.size() == all_.size()) return;
        sorted_.clear();
        for (Allocation& v : all_) sorted_.push_back(&v);
        std::sort(sorted_.begin(), sorted_.end(),
                  [](const Allocation* a, const Allocation* b) { return a->low < b->low; });
    }
    std::deque<Allocation>& all() { return all_; }

private:
    std::deque<Allocation> all_;
    std::vector<Allocation*> sorted_;
    std::vector<std::pair<uintptr_t, uintptr_t>> gaps_;
};

extern Heap& heap;
extern Variables& variables;

}  // namespace opw::core
