// Leading dimensions that broadcast: the kernel computes one item, and this calls it for each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "opwright/call.h"
#include "opwright/parallel.h"

namespace opw::detail {

// How the items lie is told by `walk`: the number of leading dimensions, then for each, outermost first,
// its extent and what it moves every tensor by, in elements (0 where a tensor has one for all).

// The rows of one call where an item has `rows`: those of all the items whose rows follow one another
// in every tensor that has rows, while the others have one for all. `rank` becomes the number of leading
// dimensions that are left. `steps` are what a row moves every tensor by (0 where it has none), and
// `told` the tensors, a bit each, of which the kernel is told that: there, the step from an item of one
// row to the next may be any, and becomes the row's.
template <std::size_t Tensors>
std::int64_t stack_rows(const Value* walk, std::int64_t rows, std::int64_t (&steps)[Tensors], unsigned told,
                        std::int64_t& rank) {
    for (; rank > 0; --rank) {
        const Value* inner = walk + 1 + (rank - 1) * std::int64_t{Tensors + 1};
        const bool alone = rows == 1;
        for (std::size_t t = 0; t < Tensors; ++t) {
            const std::int64_t moved = inner[1 + t].i;
            const bool any = alone && (told >> t & 1) != 0;
            if (moved != rows * steps[t] && !any) return rows;
        }
        for (std::size_t t = 0; t < Tensors && alone; ++t) {
            if ((told >> t & 1) != 0) steps[t] = inner[1 + t].i;
        }
        rows *= inner[0].i;
    }
    return rows;
}

// Calls `item` for the items of the outer `rank` leading dimensions. `bytes` are the sizes of the
// tensors' elements. Where there are as many items as threads, each thread computes items by itself,
// else all work on one item after the other.
template <std::size_t Tensors, class Item>
void for_items(void* const* tensors, const std::int64_t (&bytes)[Tensors], const Value* walk, std::int64_t rank,
               const Item& item) {
    if (rank == 0) return item(tensors);
    constexpr std::int64_t step = Tensors + 1;  // numbers for one dimension
    const auto extent = [&](std::int64_t d) { return walk[1 + d * step].i; };
    std::int64_t items = 1;
    for (std::int64_t d = 0; d < rank; ++d) items *= extent(d);
    const auto range = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            std::int64_t moved[Tensors] = {};
            for (std::int64_t d = rank - 1, rest = i; d >= 0; --d) {
                const std::int64_t at = rest % extent(d);
                rest /= extent(d);
                for (std::size_t t = 0; t < Tensors; ++t) moved[t] += at * (walk + 2 + d * step)[t].i;
            }
            void* own[Tensors];
            for (std::size_t t = 0; t < Tensors; ++t) own[t] = static_cast<char*>(tensors[t]) + moved[t] * bytes[t];
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
