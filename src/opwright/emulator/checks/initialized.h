// Reads of memory that nobody wrote. One byte of shadow for four of memory: a bit for each.
#pragma once

#include <cstdlib>
#include <cstring>

#include "checks/seen.h"

namespace opw::checks {

class Initialized final : public Observer {
public:
    void allocated(Allocation& a) override {
        // What the host writes to managed and pinned memory through its libraries is not seen.
        if (a.host_may_touch()) return;
        a.shadow[shadow_initialized] = zeroed<uint8_t>(words(a));
    }
    void freed(Allocation& a) override {
        give_back(static_cast<uint8_t*>(a.shadow[shadow_initialized]), words(a));
        a.shadow[shadow_initialized] = nullptr;
    }
    void host_wrote(Allocation& a, uintptr_t address, size_t size) override {
        if (uint8_t* const bits = static_cast<uint8_t*>(a.shadow[shadow_initialized])) mark(bits, address - a.base(), size);
    }
    void device_copied(Allocation& to, uintptr_t t, Allocation& from, uintptr_t f, size_t size) override {
        uint8_t* const target = static_cast<uint8_t*>(to.shadow[shadow_initialized]);
        const uint8_t* const source = static_cast<const uint8_t*>(from.shadow[shadow_initialized]);
        if (!target) return;
        if (!source) return mark(target, t - to.base(), size);
        for (size_t i = 0; i < size; ++i) {
            const size_t s = f - from.base() + i, d = t - to.base() + i;
            const uint8_t bit = static_cast<uint8_t>(1u << (d & 3));
            if (source[s / 4] >> (s & 3) & 1) target[d / 4] |= bit;
            else target[d / 4] &= static_cast<uint8_t>(~bit);
        }
    }
    void shared_appears(Block&, Allocation& a) override { a.shadow[shadow_initialized] = zeroed<uint8_t>(words(a)); }
    void local_appears(Allocation& a) override {
        void* const bits = std::realloc(a.shadow[shadow_initialized], words(a));
        std::memset(bits, 0, words(a));
        a.shadow[shadow_initialized] = bits;
    }
    void block_begins(Block& b) override {
        for (Allocation* a : b.shared_objects) {
            if (a->shadow[shadow_initialized]) std::memset(a->shadow[shadow_initialized], 0, words(*a));
        }
    }

    __attribute__((always_inline)) bool access(const Access& a) {
        if (!a.allocation) return true;
        uint8_t* const bits = static_cast<uint8_t*>(a.allocation->shadow[shadow_initialized]);
        if (!bits) return true;
        const size_t at = a.address - a.allocation->base();
        if (a.size >= 4) {
            bool whole = true;
            for (size_t w = at / 4, end = (at + a.size) / 4; w < end; ++w) {
                if (a.flags & is_read) whole &= bits[w] == 15;
                if (a.flags & is_write) bits[w] = 15;
            }
            if (!whole) found(a);
            return true;
        }
        const uint8_t mask = static_cast<uint8_t>(((1u << a.size) - 1) << (at & 3));
        uint8_t& byte = bits[at / 4];
        if ((a.flags & is_read) && (byte & mask) != mask) found(a);
        if ((a.flags & is_write) && (byte & mask) != mask) __atomic_fetch_or(&byte, mask, __ATOMIC_RELAXED);
        return true;
    }

private:
    static size_t words(const Allocation& a) { return (a.high - a.base() + 3) / 4; }
    static void mark(uint8_t* bits, size_t at, size_t size) {
        size_t i = at;
        const size_t end = at + size;
        for (; i < end && i & 3; ++i) bits[i / 4] |= static_cast<uint8_t>(1u << (i & 3));
        if (end - i >= 4) {
            std::memset(bits + i / 4, 15, (end - i) / 4);
            i += (end - i) / 4 * 4;
        }
        for (; i < end; ++i) bits[i / 4] |= static_cast<uint8_t>(1u << (i & 3));
    }
    static __attribute__((noinline)) void found(const Access& a) {
        if (a.space == Space::shared && a.thread->block->faulted) return;
        count_finding(1, a.site, 0, [&] {
            Report r;
            r.kind = "uninitialized-read";
            r.pc = a.thread->last_pc;
            r.thread = describe(*a.thread);
            r.message = operation(a.flags, a.size) + " of " + a.allocation->name + " at byte " +
                        std::to_string(a.address - a.allocation->low) + ", which nobody wrote";
            r.details = {{"array", a.allocation->name}, {"space", a.space == Space::shared ? "shared memory" : a.space == Space::local ? "local memory" : "global memory"}};
            return r;
        });
    }
};

}  // namespace opw::checks
