// A caller's DLTensor: checked, compared with others in memory, copied from and to any strides.
#pragma once

#include <algorithm>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace opw::ship {

constexpr int max_rank = 64;

inline thread_local char message[1024] = "";

// Keeps the message and returns the status.
__attribute__((format(printf, 2, 3))) inline int fail(int status, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return status;
}

struct Element {
    const char* name;
    std::uint8_t code, bits;

    std::int64_t bytes() const { return bits / 8; }
};

// A tensor that passed the checks. Strides are in bytes, dimensions of one element left out of `steps`.
struct View {
    const DLTensor* given;
    char* data;
    std::int64_t count;
    bool dense;                // row-major without gaps
    std::uintptr_t low, high;  // the bytes [low, high) that hold its elements
    std::int64_t size;         // of an element
    int steps;
    std::int64_t extent[max_rank], stride[max_rank];
};

// The checks that need no other tensor. `where` is "operator: tensor".
inline int check_tensor(const DLTensor* given, const Element& element, const char* op, const char* name,
                        View& view) {
    view.given = given;
    view.size = element.bytes();
    view.steps = 0;
    const int rank = given->ndim;
    view.count = 1;
    bool empty = false;
    for (int d = 0; d < rank; ++d) {
        if (given->shape[d] < 0) {
            return fail(OPW_SHAPE, "%s: dimension %d of %s is %lld; sizes are 0 or more", op, d, name,
                        static_cast<long long>(given->shape[d]));
        }
        empty |= given->shape[d] == 0;
    }
    if (empty) view.count = 0;
    // What is used below is in bytes: none of it may pass int64.
    std::int64_t bytes = view.size;
    for (int d = 0; d < rank && !empty; ++d) {
        if (__builtin_mul_overflow(bytes, given->shape[d], &bytes)) {
            return fail(OPW_OVERFLOW, "%s: %s has more bytes than int64 can count", op, name);
        }
    }
    if (!empty) view.count = bytes / view.size;
    view.data = nullptr;
    view.dense = true;
    view.low = view.high = 0;
    if (empty) return 0;
    if (!given->data) return fail(OPW_NULL, "%s: %s has elements, but its data is NULL", op, name);
    std::uintptr_t address;
    if (__builtin_add_overflow(reinterpret_cast<std::uintptr_t>(given->data), given->byte_offset,
                               &address)) {
        return fail(OPW_OVERFLOW, "%s: the byte_offset of %s passes the end of memory", op, name);
    }
    if (address % static_cast<std::uintptr_t>(view.size) != 0) {
        return fail(OPW_ALIGNMENT, "%s: %s begins at %#llx, which is no multiple of its element's %lld bytes",
                    op, name, static_cast<unsigned long long>(address),
                    static_cast<long long>(view.size));
    }
    view.data = reinterpret_cast<char*>(address);
    std::int64_t row = view.size, below = 0, above = view.size;
    for (int d = rank - 1; d >= 0; --d) {
        const std::int64_t extent = given->shape[d];
        if (extent == 1) continue;
        std::int64_t stride = row, reach;
        if (given->strides && __builtin_mul_overflow(given->strides[d], view.size, &stride)) {
            return fail(OPW_OVERFLOW, "%s: stride %d of %s passes int64 in bytes", op, d, name);
        }
        if (__builtin_mul_overflow(stride, extent - 1, &reach) ||
            __builtin_add_overflow(reach < 0 ? below : above, reach, reach < 0 ? &below : &above)) {
            return fail(OPW_OVERFLOW, "%s: stride %d of %s leads past the end of memory", op, d, name);
        }
        view.dense &= stride == row;
        row *= extent;
        view.extent[view.steps] = extent;
        view.stride[view.steps++] = stride;
    }
    // Outermost first, as shapes are.
    std::reverse(view.extent, view.extent + view.steps);
    std::reverse(view.stride, view.stride + view.steps);
    view.low = address + static_cast<std::uintptr_t>(below);
    view.high = address + static_cast<std::uintptr_t>(above);
    if (view.low > address || view.high < address) {
        return fail(OPW_OVERFLOW, "%s: the strides of %s lead past the end of memory", op, name);
    }
    return 0;
}

// The steps of a view as positive strides, largest first, dimensions that merge merged and those of
// stride 0 left out: the order of memory. False where steps overlap one another.
struct Ordered {
    int steps = 0;
    std::int64_t extent[max_rank], stride[max_rank];
    std::int64_t run;  // bytes in one piece
};

inline bool in_memory_order(const View& view, Ordered& ordered) {
    for (int d = 0; d < view.steps; ++d) {
        const std::int64_t stride = std::abs(view.stride[d]);
        if (stride == 0) continue;
        int at = ordered.steps++;
        for (; at > 0 && ordered.stride[at - 1] < stride; --at) {
            ordered.stride[at] = ordered.stride[at - 1];
            ordered.extent[at] = ordered.extent[at - 1];
        }
        ordered.stride[at] = stride;
        ordered.extent[at] = view.extent[d];
    }
    ordered.run = view.size;
    while (ordered.steps > 0 && ordered.stride[ordered.steps - 1] == ordered.run) {
        ordered.run *= ordered.extent[--ordered.steps];
    }
    std::int64_t reach = ordered.run;
    for (int d = ordered.steps - 1; d >= 0; --d) {
        if (ordered.stride[d] < reach) return false;
        reach = ordered.stride[d] * (ordered.extent[d] - 1) + reach;
    }
    return true;
}

// Whether two elements of an output may share a byte. Exact for whatever slicing, transposing and
// reversing give; strides that interleave in other ways count as sharing.
inline bool overlaps_itself(const View& view) {
    for (int d = 0; d < view.steps; ++d) {
        if (view.stride[d] == 0) return true;
    }
    Ordered ordered;
    return !in_memory_order(view, ordered);
}

// The pieces of memory that an ordered view is made of, by address.
class Pieces {
  public:
    Pieces(const View& view, const Ordered& ordered) : ordered_(ordered), at_(view.low) {}

    std::uintptr_t begin() const { return at_; }
    std::uintptr_t end() const { return at_ + static_cast<std::uintptr_t>(ordered_.run); }

    bool next() {
        for (int d = ordered_.steps - 1; d >= 0; --d) {
            if (++index_[d] < ordered_.extent[d]) {
                at_ += static_cast<std::uintptr_t>(ordered_.stride[d]);
                return true;
            }
            at_ -= static_cast<std::uintptr_t>(ordered_.stride[d] * (ordered_.extent[d] - 1));
            index_[d] = 0;
        }
        return false;
    }

  private:
    const Ordered& ordered_;
    std::uintptr_t at_;
    std::int64_t index_[max_rank] = {};
};

// Whether an output (which does not overlap itself) and an input have a byte in common.
inline bool overlap(const View& out, const View& in) {
    if (out.count == 0 || in.count == 0 || out.low >= in.high || in.low >= out.high) return false;
    if (out.dense && in.dense) return true;
    // All addresses of both are their first plus a multiple of g: columns side by side never meet.
    std::int64_t g = 0;
    for (const View* view : {&out, &in}) {
        for (int d = 0; d < view->steps; ++d) g = std::gcd(g, view->stride[d]);
    }
    if (g > 0) {
        const auto modulus = static_cast<std::uintptr_t>(g);
        const std::uintptr_t apart = in.low >= out.low
                                         ? (in.low - out.low) % modulus
                                         : (modulus - (out.low - in.low) % modulus) % modulus;
        const auto from = static_cast<std::int64_t>(apart);
        if (from >= out.size && from + in.size <= g) return false;
    }
    Ordered first, second;
    if (!in_memory_order(out, first) || !in_memory_order(in, second)) return true;
    Pieces a(out, first), b(in, second);
    for (;;) {
        if (a.begin() < b.end() && b.begin() < a.end()) return true;
        if (!(a.end() <= b.begin() ? a.next() : b.next())) return false;
    }
}

// Copies `rows` x `cols` elements; in tiles, so that of two arrays with different orders both are used a
// line at a time: 32 x 32 elements of 8 bytes are 8 KiB of each.
template <class Word>
void copy_plane(char* to, std::int64_t to_row, std::int64_t to_col, const char* from, std::int64_t from_row,
                std::int64_t from_col, std::int64_t rows, std::int64_t cols) {
    constexpr std::int64_t tile = 32;
    for (std::int64_t i0 = 0; i0 < rows; i0 += tile) {
        for (std::int64_t j0 = 0; j0 < cols; j0 += tile) {
            const std::int64_t i1 = std::min(rows, i0 + tile), j1 = std::min(cols, j0 + tile);
            for (std::int64_t i = i0; i < i1; ++i) {
                for (std::int64_t j = j0; j < j1; ++j) {
                    Word word;
                    std::memcpy(&word, from + i * from_row + j * from_col, sizeof word);
                    std::memcpy(to + i * to_row + j * to_col, &word, sizeof word);
                }
            }
        }
    }
}

inline void copy_plane_of(std::int64_t size, char* to, std::int64_t to_row, std::int64_t to_col,
                          const char* from, std::int64_t from_row, std::int64_t from_col,
                          std::int64_t rows, std::int64_t cols) {
    switch (size) {
        case 1: return copy_plane<std::uint8_t>(to, to_row, to_col, from, from_row, from_col, rows, cols);
        case 2: return copy_plane<std::uint16_t>(to, to_row, to_col, from, from_row, from_col, rows, cols);
        case 4: return copy_plane<std::uint32_t>(to, to_row, to_col, from, from_row, from_col, rows, cols);
        default: return copy_plane<std::uint64_t>(to, to_row, to_col, from, from_row, from_col, rows, cols);
    }
}

// Between a view and row-major memory, in either direction.
inline void copy_strided(const View& view, char* packed, bool pack) {
    const int steps = view.steps;
    std::int64_t own[max_rank];
    std::int64_t row = view.size;
    for (int d = steps - 1; d >= 0; --d) {
        own[d] = row;
        row *= view.extent[d];
    }
    // The plane: the innermost dimension of the packed side, and of the others that with the smallest
    // stride on the view's side.
    const int inner = steps - 1;
    int outer = inner - 1;
    for (int d = 0; d < inner; ++d) {
        if (std::abs(view.stride[d]) < std::abs(view.stride[outer])) outer = d;
    }
    const std::int64_t cols = inner >= 0 ? view.extent[inner] : 1, rows = outer >= 0 ? view.extent[outer] : 1;
    const std::int64_t view_col = inner >= 0 ? view.stride[inner] : 0;
    const std::int64_t view_row = outer >= 0 ? view.stride[outer] : 0;
    const std::int64_t own_col = view.size, own_row = outer >= 0 ? own[outer] : 0;
    std::int64_t index[max_rank] = {};
    char* strided = view.data;
    for (;;) {
        if (pack) {
            copy_plane_of(view.size, packed, own_row, own_col, strided, view_row, view_col, rows, cols);
        } else {
            copy_plane_of(view.size, strided, view_row, view_col, packed, own_row, own_col, rows, cols);
        }
        int d = inner - 1;
        for (; d >= 0; --d) {
            if (d == outer) continue;
            if (++index[d] < view.extent[d]) {
                strided += view.stride[d];
                packed += own[d];
                break;
            }
            index[d] = 0;
            strided -= view.stride[d] * (view.extent[d] - 1);
            packed -= own[d] * (view.extent[d] - 1);
        }
        if (d < 0) return;
    }
}

}  // namespace opw::ship
