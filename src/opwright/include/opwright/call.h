// How the run-time calls a kernel: one function of one argument, whatever the signature. The build
// writes its body from the declaration (see opwright/spec/signature.py), so no kernel has to.
#pragma once

#include <cstdint>

namespace opw {

union Value {
    std::int64_t i;  // dimensions, int and bool attributes
    double f;        // float attributes, already rounded to float where the elements are
};

// The host's threads. run() calls task(argument, index) for every index in [0, tasks), on any number
// of threads up to `threads` (which may be fewer than tasks), and returns when all have finished.
// `threads` is what the host grants, not what was asked for. A task may call run() itself; it then
// runs on the calling thread alone. The first exception out of a task is thrown again by run() once
// no task is running; tasks that had not begun by then are left out.
struct Threads {
    std::int64_t threads;
    void (*run)(const Threads* self, std::int64_t tasks, void (*task)(void*, std::int64_t),
                void* argument);
};

struct Call {
    void* const* tensors;  // inputs in declaration order, then the output
    const Value* values;   // dimensions, then attributes, in the order of the C function
    const Threads* threads;
};

namespace detail {
// One for each host thread; the generated entry sets it before the kernel runs.
inline thread_local const Threads* current_threads = nullptr;
}  // namespace detail

}  // namespace opw
