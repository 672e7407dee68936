// Where operands live: arrays between inaccessible pages for verification, ordinary memory on huge
// pages for timing. An address range is kept when its operands are freed and given to the next of
// the same sizes, so that a kernel which remembers addresses meets them again with other values.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace runner {

enum class Placement : std::uint32_t { end = 0, begin = 1, aligned = 2 };

inline std::size_t round_up(std::size_t size, std::size_t unit) {
    return (size + unit - 1) / unit * unit;
}

[[noreturn]] inline void no_memory(const char* what, std::size_t size) {
    throw std::runtime_error(std::string(what) + " of " + std::to_string(size) +
                             " bytes: " + std::strerror(errno));
}

struct Operands {
    Placement placement;
    std::vector<std::size_t> sizes;  // in bytes, the output's last
    char* base;                      // of the whole address range
    std::vector<char*> pages;        // first page of each array (aligned: its first byte)
    std::vector<char*> pointers;     // what the kernel gets
    char* output;                    // the client's view of the output, in shared memory
};

class Memory {
  public:
    // The descriptors hold each array in whole pages, one after the other. Throws when there is no
    // memory or address space for it.
    const Operands& add(std::uint64_t id, Placement placement, std::vector<std::size_t> sizes,
                        int inputs, int output) {
        Operands operands = range(placement, std::move(sizes));
        try {
            if (placement == Placement::aligned) {
                fill_aligned(operands, inputs, output);
            } else {
                map_guarded(operands, inputs, output);
            }
        } catch (...) {
            retire(std::move(operands));
            throw;
        }
        return operands_[id] = std::move(operands);
    }

    void remove(std::uint64_t id) {
        const auto found = operands_.find(id);
        if (found == operands_.end()) return;
        retire(std::move(found->second));
        operands_.erase(found);
    }

    const Operands& get(std::uint64_t id) const { return operands_.at(id); }

  private:
    using Key = std::pair<Placement, std::vector<std::size_t>>;

    static constexpr std::size_t kHuge = std::size_t{2} << 20;

    std::size_t page_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    std::map<std::uint64_t, Operands> operands_;
    std::multimap<Key, Operands> retired_;

    // Inaccessible bytes on either side of an array. An index that is wrong by a whole array (rows
    // taken for columns, twice the size) must still hit them, not the neighbour.
    static std::size_t guard(const std::vector<std::size_t>& sizes) {
        const std::size_t largest = sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end());
        return round_up((std::size_t{16} << 20) + largest, kHuge);
    }

    static char* reserve(std::size_t size) {
        void* memory = mmap(nullptr, size, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) no_memory("reserving an address range", size);
        return static_cast<char*>(memory);
    }

    Operands range(Placement placement, std::vector<std::size_t> sizes) {
        const auto found = retired_.find(Key{placement, sizes});
        if (found != retired_.end()) {
            Operands operands = std::move(found->second);
            retired_.erase(found);
            return operands;
        }
        Operands operands{placement, std::move(sizes), nullptr, {}, {}, nullptr};
        return placement == Placement::aligned ? lay_aligned(std::move(operands))
                                               : lay_guarded(std::move(operands));
    }

    Operands lay_guarded(Operands operands) const {
        const std::size_t fence = guard(operands.sizes);
        std::size_t total = fence;
        for (const std::size_t size : operands.sizes) total += round_up(size, page_) + 2 * fence;
        operands.base = reserve(total);
        char* next = operands.base + fence;
        for (const std::size_t size : operands.sizes) {
            const std::size_t extent = round_up(size, page_);
            operands.pages.push_back(next);
            operands.pointers.push_back(
                operands.placement == Placement::end ? next + (extent - size) : next);
            next += extent + 2 * fence;
        }
        return operands;
    }

    // Offsets into a page differ by 9 lines from one array to the next: arrays that start at the
    // same offset compete for the same sets of L1, and a load waits for an unrelated store to an
    // address that agrees in its low 12 bits.
    Operands lay_aligned(Operands operands) const {
        const std::size_t fence = guard(operands.sizes);
        std::vector<std::size_t> offsets;
        std::size_t used = 0;
        for (std::size_t i = 0; i < operands.sizes.size(); ++i) {
            offsets.push_back(round_up(used, page_) + (i * 9 * 64) % page_);
            used = offsets.back() + operands.sizes[i];
        }
        const std::size_t extent = round_up(used + 64, kHuge);
        operands.base = reserve(extent + 2 * fence + kHuge);
        char* start = operands.base + fence;
        start += round_up(reinterpret_cast<std::uintptr_t>(start), kHuge) -
                 reinterpret_cast<std::uintptr_t>(start);
        if (mprotect(start, extent, PROT_READ | PROT_WRITE) != 0) no_memory("memory", extent);
        madvise(start, extent, MADV_HUGEPAGE);  // a hint: without it timings show more TLB misses
        for (const std::size_t offset : offsets) operands.pages.push_back(start + offset);
        operands.pointers = operands.pages;
        return operands;
    }

    void map(char* where, std::size_t size, int protection, int flags, int fd, std::size_t offset) {
        if (size == 0) return;
        void* memory = mmap(where, size, protection, flags | MAP_FIXED, fd, static_cast<off_t>(offset));
        if (memory == MAP_FAILED) no_memory("mapping", size);
    }

    // The inputs' descriptor is sealed, so this private mapping is all that a kernel could change,
    // and it can only be read: a store faults.
    void map_guarded(Operands& operands, int inputs, int output) {
        std::size_t offset = 0;
        const std::size_t last = operands.sizes.size() - 1;
        for (std::size_t i = 0; i < last; ++i) {
            const std::size_t extent = round_up(operands.sizes[i], page_);
            map(operands.pages[i], extent, PROT_READ, MAP_PRIVATE, inputs, offset);
            offset += extent;
        }
        map(operands.pages[last], round_up(operands.sizes[last], page_), PROT_READ | PROT_WRITE,
            MAP_SHARED, output, 0);
        operands.output = operands.pointers[last];
    }

    void fill_aligned(Operands& operands, int inputs, int output) {
        std::size_t offset = 0;
        const std::size_t last = operands.sizes.size() - 1;
        for (std::size_t i = 0; i < last; ++i) {
            const std::size_t size = operands.sizes[i], extent = round_up(size, page_);
            if (size == 0) continue;
            void* memory = mmap(nullptr, extent, PROT_READ, MAP_PRIVATE, inputs,
                                static_cast<off_t>(offset));
            if (memory == MAP_FAILED) no_memory("mapping", extent);
            std::memcpy(operands.pointers[i], memory, size);
            munmap(memory, extent);
            offset += extent;
        }
        operands.output = operands.pointers[last];
        if (const std::size_t size = operands.sizes[last]) {
            void* memory = mmap(nullptr, round_up(size, page_), PROT_READ | PROT_WRITE, MAP_SHARED,
                                output, 0);
            if (memory == MAP_FAILED) no_memory("mapping", size);
            operands.output = static_cast<char*>(memory);
            // Every page of the output is there before the first call, as for a caller that
            // reuses its buffers.
            std::memset(operands.pointers[last], 0, size);
        }
    }

    void retire(Operands operands) {
        for (std::size_t i = 0; i < operands.sizes.size(); ++i) {
            const std::size_t size = operands.sizes[i];
            if (size == 0) continue;
            if (operands.placement == Placement::aligned) {
                const auto first = round_up(reinterpret_cast<std::uintptr_t>(operands.pages[i]), page_);
                const auto end = reinterpret_cast<std::uintptr_t>(operands.pages[i]) + size;
                if (end > first) madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
            } else {
                map(operands.pages[i], round_up(size, page_), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            }
        }
        if (operands.placement == Placement::aligned && operands.output &&
            operands.output != operands.pointers.back()) {
            munmap(operands.output, round_up(operands.sizes.back(), page_));
        }
        operands.output = nullptr;
        Key key{operands.placement, operands.sizes};
        retired_.emplace(std::move(key), std::move(operands));
    }
};

}  // namespace runner
