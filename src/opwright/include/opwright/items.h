// Leading dimensions that broadcast: the kernel computes one item, and this calls it for each.
#pragma once

#include <cstdint>

#include "opwright/call.h"
#include "opwright/parallel.h"

namespace opw::detail {

// `walk` says how the items lie: the number of leading dimensions, then for each, outermost first, its
// extent and what it moves every tensor by, in elements (0 where a tensor has one for all).
// `bytes` are the sizes of the tensors' elements. Where there are as many items as threads, each
// thread computes items by itself, else all work on one item after the other.
template <int Tensors, class Item>
void for_items(void* const* tensors, const std::int64_t (&bytes)[Tensors], const Value* walk, const Item& item) {
    const std::int64_t rank = walk[0].i;
    if (rank == 0) return item(tensors);
    constexpr int step = Tensors + 1;  // numbers for one dimension
    const auto extent = [&](std::int64_t d) { return walk[1 + d * step].i; };
    std::int64_t items = 1;
    for (std::int64_t d = 0; d < rank; ++d) items *= extent(d);
    const auto range = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            std::int64_t moved[Tensors] = {};
            for (std::int64_t d = rank - 1, rest = i; d >= 0; --d) {
                const std::int64_t at = rest % extent(d);
                rest /= extent(d);
                for (int t = 0; t < Tensors; ++t) moved[t] += at * walk[2 + d * step + t].i;
            }
            void* own[Tensors];
            for (int t = 0; t < Tensors; ++t) own[t] = static_cast<char*>(tensors[t]) + moved[t] * bytes[t];
            item(own);
        }
    };
    if (items >= threads()) {
        parallel_for(items, 1, range);
    } else {
        range(0, items);
    }
}

}  // namespace opw::detail
