// Threads for kernels. The host decides how many and owns them; work is cut by range, never by
// thread number, so a kernel is right however many threads it is granted.
#pragma once

#include <algorithm>
#include <cstdint>

#include "opwright/call.h"

namespace opw {

// The number of threads the host grants; 1 outside a call and inside the body of a parallel_for.
inline std::int64_t threads() {
    return detail::current_threads ? std::max<std::int64_t>(1, detail::current_threads->threads) : 1;
}

namespace detail {

// Makes threads() 1 while a range is worked on, on the calling thread as on the others: a nested
// parallel_for then cuts its work the same way wherever it runs, so results do not depend on luck.
class Alone {
  public:
    Alone() : before_(current_threads) { current_threads = nullptr; }
    ~Alone() { current_threads = before_; }
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

  private:
    const Threads* before_;
};

}  // namespace detail

// Calls body(begin, end) on disjoint ranges that cover [0, n), each a multiple of `grain` long
// except the last. `grain` is the least work worth handing to a thread: a few microseconds of it,
// since waking a sleeping thread takes about as long. An exception out of body reaches the caller.
template <class Body>
void parallel_for(std::int64_t n, std::int64_t grain, const Body& body) {
    if (n <= 0) return;
    grain = std::max<std::int64_t>(1, grain);
    const std::int64_t grains = (n - 1) / grain + 1;
    const std::int64_t tasks = std::min(threads(), grains);
    if (tasks <= 1) {
        const detail::Alone alone;
        body(std::int64_t{0}, n);
        return;
    }
    struct Range {
        std::int64_t n, grain, grains, tasks;
        const Body* body;
    } range{n, grain, grains, tasks, &body};
    detail::current_threads->run(
        detail::current_threads, tasks,
        [](void* argument, std::int64_t index) {
            const detail::Alone alone;
            const Range& r = *static_cast<const Range*>(argument);
            // The first `extra` ranges have one grain more; no product that could overflow.
            const std::int64_t each = r.grains / r.tasks, extra = r.grains % r.tasks;
            const std::int64_t first = each * index + std::min(index, extra);
            const std::int64_t last = first + each + (index < extra ? 1 : 0);
            (*r.body)(first * r.grain, last == r.grains ? r.n : last * r.grain);
        },
        &range);
}

}  // namespace opw
