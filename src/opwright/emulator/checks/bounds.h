// Accesses outside every allocation, after a free, or at an address that the hardware refuses.
#pragma once

#include "checks/seen.h"

namespace opw::checks {

class Bounds final : public Observer {
public:
    __attribute__((always_inline)) bool access(const Access& a) {
        if (a.allocation && a.address >= a.allocation->low && a.address + a.size <= a.allocation->high && !a.allocation->freed) {
            if ((a.address & (a.size - 1)) == 0) {
                return a.space != Space::constant || !(a.flags & is_write) || constant(a);
            }
            return misaligned(a);
        }
        if (a.array_of_constants) return true;
        return outside(a);
    }

private:
    __attribute__((noinline, cold)) static bool constant(const Access& a) {
        return wrong(a, "write-to-constant", operation(a.flags, a.size) + " in " + a.allocation->name + ", which is __constant__");
    }
    __attribute__((noinline, cold)) static bool misaligned(const Access& a) {
            return wrong(a, "misaligned", operation(a.flags, a.size) + " in " + a.allocation->name + " at byte " +
                         std::to_string(a.address - a.allocation->low) + ": the address is not a multiple of " + std::to_string(a.size));
    }

    __attribute__((noinline, cold)) static bool wrong(const Access& a, const char* kind, const std::string& message, std::vector<std::pair<std::string, std::string>> details = {}) {
        Report r;
        r.kind = kind;
        r.pc = site(a.site).pc ? site(a.site).pc : a.thread->last_pc;
        r.thread = describe(*a.thread);
        r.message = message;
        r.details = std::move(details);
        if (a.allocation) r.details.emplace_back("array", a.allocation->name);
        report(r);
        return false;
    }

    __attribute__((noinline, cold)) static bool outside(const Access& a) {
        if (a.allocation && a.allocation->freed) {
            return wrong(a, "use-after-free", operation(a.flags, a.size) + " in " + a.allocation->name + ", which was freed at line " +
                         std::to_string(a.allocation->free_line));
        }
        if (a.address < 4096) return wrong(a, "null-pointer", operation(a.flags, a.size) + " through a null pointer");
        if (a.space == Space::shared) {
            return beyond(a, nearest(a.address, a.thread->block->shared_objects), "shared memory");
        }
        if (a.space == Space::global && heap.contains(a.address)) {
            std::vector<Allocation*> all;
            for (Allocation& x : heap.all()) if (x.low) all.push_back(&x);
            return beyond(a, nearest(a.address, all), "global memory");
        }
        if (a.space == Space::local) {
            return wrong(a, "out-of-bounds", operation(a.flags, a.size) + " in the local memory of another thread");
        }
        if (variables.in_gap(a.address)) {
            const Allocation* const near = variables.near(a.address);
            return beyond(a, near, near && near->kind == Allocation::Kind::constant_variable ? "constant memory" : "global memory");
        }
        return wrong(a, "host-memory", operation(a.flags, a.size) + (in_host_data(a.address) ? " of a host variable: device code reaches only __device__, __constant__ and __managed__ ones"
                                                                               : " at an address that is no device memory (a host pointer, or one never set)"));
    }

    static Allocation* nearest(uintptr_t address, const std::vector<Allocation*>& all) {
        Allocation* best = nullptr;
        uintptr_t distance = ~uintptr_t{0};
        for (Allocation* x : all) {
            const uintptr_t d = address < x->low ? x->low - address : address >= x->high ? address - x->high : 0;
            if (d < distance) {
                distance = d;
                best = x;
            }
        }
        return best;
    }

    static bool beyond(const Access& a, const Allocation* near, const char* where) {
        if (!near) return wrong(a, "out-of-bounds", operation(a.flags, a.size) + " outside all " + where);
        const bool before = a.address < near->low;
        const uintptr_t offset = before ? near->low - a.address : a.address - near->high;
        std::string message = operation(a.flags, a.size);
        if (!before && a.address < near->high) {
            message += " across the end of " + near->name + ", " + std::to_string(a.address + a.size - near->high) + " bytes too far";
        } else {
            message += " " + std::to_string(offset) + " bytes " + (before ? "before the start of " : "past the end of ") + near->name;
        }
        message += " (" + std::to_string(near->size()) + " bytes of " + where + (near->freed ? ", since freed" : "") + ")";
        return wrong(a, "out-of-bounds", message,
                     {{"array", near->name}, {"offset", std::to_string(before ? -static_cast<long long>(offset) : static_cast<long long>(a.address - near->high))},
                      {"end", before ? "start" : "end"}, {"space", where}});
    }
};

}  // namespace opw::checks
