// Threads for kernels. The host decides how many and owns them; work is cut by range, never by
// thread number, so a kernel is right however many threads it is granted.
#pragma once

#include <algorithm>
#include <cstdint>

#include "opwright/call.h"

namespace opw {

// The number of threads the host grants; 1 outside a call.
inline std::int64_t threads() {
    return detail::current_threads ? std::max<std::int64_t>(1, detail::current_threads->threads) : 1;
}

// Calls body(begin, end) on disjoint ranges that cover [0, n), each a multiple of `grain` long
// except the last. `grain` is the least work worth handing to a thread.
template <class Body>
void parallel_for(std::int64_t n, std::int64_t grain, const Body& body) {
    if (n <= 0) return;
    grain = std::max<std::int64_t>(1, grain);
    const std::int64_t grains = (n - 1) / grain + 1;
    const std::int64_t tasks = std::min(threads(), grains);
    if (tasks <= 1) {
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
            const Range& r = *static_cast<const Range*>(argument);
            const std::int64_t begin = r.grains * index / r.tasks * r.grain;
            const std::int64_t end = std::min(r.n, r.grains * (index + 1) / r.tasks * r.grain);
            (*r.body)(begin, end);
        },
        &range);
}

}  // namespace opw
