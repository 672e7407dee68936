// Threads of the device as fibers of a host thread: a stack each, and a switch between stacks.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace opw::core {

constexpr std::size_t stack_size = std::size_t{256} << 10;
constexpr std::size_t stack_region = std::size_t{1} << 37;  // room for 524,288 threads at once

struct Fiber {
    std::uintptr_t low = 0;
    std::uintptr_t high = 0;
    void* pointer = nullptr;  // its stack pointer while another runs
#if !defined(__x86_64__)
    ucontext_t context;
#endif
};

// What the emulator keeps for itself is mapped as shared memory, though nobody shares it: a limit on
// a process's data then counts what the program itself asks for.

// All stacks lie in one region, so that "is this a stack of the device" is one comparison.
class Stacks {
public:
    Stacks() {
        void* region = mmap(nullptr, stack_region, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (region == MAP_FAILED) {
            std::perror("emulator: no address space for the threads' stacks");
            std::_Exit(125);
        }
        low_ = reinterpret_cast<std::uintptr_t>(region);
    }
    bool contains(std::uintptr_t address) const { return address - low_ < stack_region; }

    // The lowest page stays inaccessible: running over it is a fault, not a silent overwrite.
    Fiber* make() {
        const std::lock_guard<std::mutex> hold(mutex_);
        const std::uintptr_t low = low_ + used_ * stack_size;
        ++used_;
        if (used_ * stack_size > stack_region ||
            mprotect(reinterpret_cast<void*>(low + 4096), stack_size - 4096, PROT_READ | PROT_WRITE)) {
            std::fputs("emulator: no memory for the threads' stacks\n", stderr);
            std::_Exit(125);
        }
        Fiber* fiber = new Fiber;
        // Equal offsets in all stacks would compete for the same sets of the cache.
        fiber->low = low + 4096;
        fiber->high = low + stack_size - used_ * 448 % 4096 / 64 * 64;
        return fiber;
    }

private:
    std::mutex mutex_;
    std::uintptr_t low_ = 0;
    std::size_t used_ = 0;
};

#if defined(__x86_64__)

extern "C" void opw_switch(void** save, void* to);
// The six registers a call preserves, and the stack pointer.
asm(R"(
.text
.globl opw_switch
.hidden opw_switch
.type opw_switch, @function
opw_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size opw_switch, .-opw_switch
)");

inline void prepare(Fiber& fiber, void (*entry)()) {
    void** top = reinterpret_cast<void**>(fiber.high & ~std::uintptr_t{15});
    *--top = nullptr;  // where the entry would return to; it never does
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    fiber.pointer = top;
}
inline void enter(Fiber& fiber, Fiber& home) { opw_switch(&home.pointer, fiber.pointer); }
inline void leave(Fiber& fiber, Fiber& home) { opw_switch(&fiber.pointer, home.pointer); }

#else

inline void prepare(Fiber& fiber, void (*entry)()) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = reinterpret_cast<void*>(fiber.low);
    fiber.context.uc_stack.ss_size = fiber.high - fiber.low;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, entry, 0);
}
inline void enter(Fiber& fiber, Fiber& home) { swapcontext(&home.context, &fiber.context); }
inline void leave(Fiber& fiber, Fiber& home) { swapcontext(&fiber.context, &home.context); }

#endif

}  // namespace opw::core
