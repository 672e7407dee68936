// The blocked product: which part of A, B and C is in which cache, and who computes it.
//
//   for columns of C, `Blocks::cols` at a time
//     for the sums, `Blocks::depth` terms at a time
//       pack that part of B into column panels as wide as the micro-kernel's tile        (L2)
//       for row panels of C as high as the tile: pack that part of A                      (L1)
//         for column panels: micro-kernel                                          (registers)
//       with the last terms, the epilogue on each finished row panel                      (L1)
//
// Packing (pack.h) takes operands at any strides, widens 16-bit elements where the instruction set has
// no multiply-add for them, puts what the micro-kernel reads next to each other, and pads with zeros,
// so that the micro-kernel reads whole vectors however the sizes fall.
// Where the output has not the type of the sums, these are kept beside it until the last block is added.
//
// Every element is summed in an order that depends on the sizes alone: any number of threads gives the
// same bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "blocks.h"
#include "micro_kernel.h"
#include "opwright/parallel.h"
#include "pack.h"
#include "thin.h"
#include "thin_dot.h"
#include "vectors.h"
#include "workspace.h"

namespace gemm {

// What is done with finished sums: this rounds each to the element type. An epilogue is called with
// `count` sums of a row, where they go (the same place, where the types are the same), and the first
// one's column.
template <class Isa> struct Store {
    template <class Acc, class Out>
    void operator()(const Acc* sums, Out* out, int64_t, int64_t count) const {
        convert<Isa>(sums, out, count);
    }
};

// B packed once for many products: for each block of terms, its column panels one after the other. The
// micro-kernel reads them in this order, whatever the number of threads.
template <class Isa> struct Packed {
    using Element = typename Isa::Packed_b;
    const typename Isa::Packed_b* data;
};

// How the terms are cut into blocks: a matter of k alone.
template <class Isa> class Depth {
    using Block = Blocks<Isa>;
    static_assert(Block::depth % Isa::step == 0 && Isa::step % Isa::group == 0);

public:
    explicit Depth(int64_t k)
        : blocks(std::max<int64_t>(1, ceil_div(k, Block::depth))),
          most(std::min(Block::depth, padded(k))), k_(k) {}

    int64_t begin(int64_t block) const {
        return std::min(k_, cut(ceil_div(k_, Isa::step), block, blocks) * Isa::step);
    }
    static int64_t padded(int64_t depth) { return ceil_div(depth, Isa::step) * Isa::step; }

    const int64_t blocks, most;  // how many, and the terms that the longest has when packed

private:
    int64_t k_;
};

template <class Isa, class ElemA, class SourceB, class Out, class Epilogue> class Gemm {
    using Acc = typename Isa::Acc;
    using Packed_a = typename Isa::Packed_a;
    using Packed_b = typename Isa::Packed_b;
    using ElemB = typename SourceB::Element;
    using Block = Blocks<Isa>;
    // A line more than a power of two: the rows of a panel do not compete for one set of L1.
    static constexpr int64_t a_stride = Block::depth + 64 / sizeof(Packed_a);
    using Micro = Tile<Isa>;
    using Pack_a = Packer<Isa, ElemA, Packed_a>;

    static constexpr int tile_cols = Micro::cols;
    static constexpr bool packs_b = !std::is_same_v<SourceB, Packed<Isa>>;
    static constexpr bool sums_beside = !std::is_same_v<Out, Acc>;
    static constexpr bool finishes = sums_beside || !std::is_same_v<Epilogue, Store<Isa>>;

    static_assert(Block::cols % tile_cols == 0, "a block is made of whole column panels");
    static_assert(Block::depth % Pack_a::block == 0, "rows of packed A have room for whole blocks");

public:
    Gemm(Operand<ElemA> a, SourceB b, Out* out, int64_t m, int64_t n, int64_t k,
         const Epilogue& epilogue)
        : a_(a), b_(b), out_(out), m_(m), n_(n), k_(k), depth_(k), epilogue_(epilogue) {}

    void run() {
        const Grid grid = grid_for(opw::threads());
        const int64_t rows = ceil_div(m_, grid.rows), cols = ceil_div(n_, grid.cols) + tile_cols;
        block_rows_ = sums_beside && depth_.blocks > 1 ? std::min(rows, Block::rows) : Isa::rows;
        block_cols_ = std::min(Block::cols, cols / tile_cols * tile_cols);
        const int64_t a_bytes = lines(Isa::rows * a_stride * sizeof(Packed_a));
        const int64_t b_bytes = packs_b ? lines(depth_.most * block_cols_ * sizeof(Packed_b)) : 0;
        const int64_t sums = sums_beside ? lines(block_rows_ * block_cols_ * sizeof(Acc)) : 0;
        const int64_t share = a_bytes + b_bytes + sums;
        char* memory = scratch<char>(share * grid.rows * grid.cols);
        opw::parallel_for(grid.rows * grid.cols, 1, [&](int64_t begin, int64_t end) {
            [[maybe_unused]] const typename Micro::Session session;
            for (int64_t task = begin; task < end; ++task) {
                char* own = memory + task * share;
                multiply(part_of(grid, task), Scratch{reinterpret_cast<Packed_a*>(own),
                                                      reinterpret_cast<Packed_b*>(own + a_bytes),
                                                      reinterpret_cast<Acc*>(own + a_bytes + b_bytes)});
            }
        });
    }

private:
    struct Grid {
        int64_t rows, cols;
    };
    struct Part {
        int64_t row_begin, row_end, col_begin, col_end;
    };
    struct Panel_a {
        const Packed_a* data;
        int64_t stride;
    };
    struct Panels_b {
        const Packed_b* there;  // where they are unpacked, with rows `stride` apart; or null
        int64_t stride;
        const Packed_b* packed;
    };
    struct Scratch {
        Packed_a* a;
        Packed_b* b;
        Acc* sums;
    };

    // Whole cache lines for so many bytes.
    static int64_t lines(int64_t bytes) { return ceil_div(bytes, 64) * 64; }

    // How to cut the output for this many threads: the largest part as small as it can be, and of
    // equals the one that packs least.
    Grid grid_for(int64_t threads) const {
        const double work = static_cast<double>(m_) * static_cast<double>(n_) * static_cast<double>(k_);
        const int64_t worth = work < static_cast<double>(work_per_thread) * static_cast<double>(threads)
                                  ? static_cast<int64_t>(work / work_per_thread)
                                  : threads;
        Grid best{1, 1};
        double least = 0;
        for (int64_t rows = 1; rows <= std::max<int64_t>(1, worth); ++rows) {
            const int64_t cols = std::max<int64_t>(1, worth) / rows;
            const double high = static_cast<double>(ceil_div(m_, rows * Isa::rows) * Isa::rows);
            const double wide = static_cast<double>(ceil_div(n_, cols * tile_cols) * tile_cols);
            const double cost = high * wide + packing * (high + wide);
            if (rows == 1 || cost < least) {
                least = cost;
                best = Grid{rows, cols};
            }
        }
        return best;
    }
    static constexpr double packing = 8;  // copying an element costs about as much as 8 multiply-adds

    Part part_of(const Grid& grid, int64_t task) const {
        const int64_t row = task / grid.cols, col = task % grid.cols;
        const int64_t panels = ceil_div(n_, tile_cols);
        return Part{cut(m_, row, grid.rows), cut(m_, row + 1, grid.rows),
                    cut(panels, col, grid.cols) * tile_cols,
                    std::min(n_, cut(panels, col + 1, grid.cols) * tile_cols)};
    }

    void multiply(const Part& part, const Scratch& scratch) const {
        for (int64_t j = part.col_begin; j < part.col_end; j += block_cols_) {
            const int64_t cols = std::min(block_cols_, part.col_end - j);
            if (!sums_beside || depth_.blocks == 1) {
                multiply_block(part.row_begin, part.row_end, j, cols, scratch);
                continue;
            }
            for (int64_t i = part.row_begin; i < part.row_end; i += block_rows_) {
                multiply_block(i, std::min(i + block_rows_, part.row_end), j, cols, scratch);
            }
        }
    }

    // Rows [row_begin, row_end) and columns [j, j + cols) of C, all terms.
    void multiply_block(int64_t row_begin, int64_t row_end, int64_t j, int64_t cols,
                        const Scratch& scratch) const {
        const int64_t height_in_all = row_end - row_begin, panels = ceil_div(height_in_all, Isa::rows);
        const Lines<ElemA> rows = rows_of(a_);
        const bool far = sums_beside ? depth_.blocks > 1 : m_ * n_ * int64_t{sizeof(Acc)} > direct_bytes;
        for (int64_t block = 0; block < depth_.blocks; ++block) {
            const int64_t begin = depth_.begin(block), depth = depth_.begin(block + 1) - begin;
            const bool last = block + 1 == depth_.blocks;
            const Panels_b b = panels_b(begin, depth, j, cols, scratch.b);
            for (int64_t panel = 0; panel < panels; ++panel) {
                const int64_t top = cut(height_in_all, panel, panels), row = row_begin + top;
                const int64_t height = cut(height_in_all, panel + 1, panels) - top;
                const Panel_a a = panel_a(row, height, begin, depth, scratch.a);
                Out* out = out_ + row * n_ + j;
                Acc* sums;
                int64_t stride;
                if constexpr (sums_beside) {
                    sums = scratch.sums + (depth_.blocks > 1 ? top * block_cols_ : 0);
                    stride = block_cols_;
                } else {
                    sums = out;
                    stride = n_;
                }
                const Ahead next = panel + 1 < panels ? ahead_of<Isa>(rows.from(row + height, begin))
                                   : !last            ? ahead_of<Isa>(rows.from(row_begin, begin + depth))
                                                      : nothing_ahead(a.data);
                for (int64_t t = 0; t < cols; t += tile_cols) {
                    const int64_t width = std::min<int64_t>(tile_cols, cols - t);
                    const bool there = width == tile_cols && b.there;
                    // Lines that will be written (bf16, 4096 x 4096 x 32: 7.7 ms instead of 13.4), but not
                    // those that are in L1 or L2 (64^3: 2 % of the time).
                    if (far) fetch(sums + t, stride, height);
                    if (sums_beside && last) fetch(out + t, n_, height);
                    Micro::multiply(height, width, depth_.padded(depth), a.data, a.stride,
                                    there ? b.there + t : b.packed + t * depth_.padded(depth),
                                    there ? b.stride : whole_vectors<Isa>(width) * Isa::group,
                                    sums + t, stride, block > 0,
                                    t + tile_cols < cols ? nothing_ahead(a.data) : next);
                }
                if (!finishes || !last) continue;
                for (int64_t i = 0; i < height; ++i) {
                    epilogue_(sums + i * stride, out + i * n_, j, cols);
                }
            }
        }
    }

    // The lines of a tile of C.
    template <class Elem> static void fetch(const Elem* c, int64_t stride, int64_t height) {
        for (int64_t i = 0; i < height; ++i, c += stride) {
            for (int64_t j = 0; j < tile_cols; j += 64 / sizeof(Elem)) __builtin_prefetch(c + j, 1);
        }
    }

    // Whether so many lines are an operand that need not be packed.
    bool fits(int64_t lines) const { return lines * k_ * int64_t{sizeof(Acc)} <= direct_bytes; }

    // Rows [row, row + height) and terms [begin, begin + depth): packed, or where they are.
    Panel_a panel_a(int64_t row, int64_t height, int64_t begin, int64_t depth, Packed_a* to) const {
        const Lines<ElemA> lines = rows_of(a_).from(row, begin);
        if constexpr (std::is_same_v<ElemA, Packed_a> && Isa::group == 1) {
            // Its rows must not compete for one set of L1: 12 of them, 1 KiB apart, do not.
            if (lines.along == 1 && lines.across <= Block::depth && fits(m_)) {
                return {lines.data, lines.across};
            }
        }
        Pack_a::rows(lines, height, m_ - row, depth, to, opaque(a_stride));
        return {to, a_stride};
    }

    // Terms [begin, begin + depth) and columns [j, j + cols): column panels one after the other, or,
    // but for a last one that is not whole, where they are.
    Panels_b panels_b(int64_t begin, int64_t depth, int64_t j, int64_t cols, Packed_b* to) const {
        if constexpr (packs_b) {
            int64_t first = 0;
            const Lines<ElemB> lines = cols_of(b_).from(j, begin);
            Panels_b panels{nullptr, 0, to};
            if constexpr (std::is_same_v<ElemB, Packed_b> && Isa::group == 1) {
                if (lines.across == 1 && fits(n_)) {
                    panels = {lines.data, lines.along, to};
                    first = cols / tile_cols * tile_cols;
                }
            }
            pack_panels(lines, first, cols, depth, to);
            return panels;
        } else {
            return {nullptr, 0, b_.data + panel_offset(begin, depth, j, n_)};
        }
    }

    // Column panels of lines [first, last), of which the first is a whole number of panels after `to`.
    static void pack_panels(const Lines<ElemB>& lines, int64_t first, int64_t last, int64_t depth,
                            Packed_b* to) {
        using Pack_b = Packer<Isa, ElemB, Packed_b, Isa::flip_b>;
        const bool neighbours = lines.across == 1 && last - first > tile_cols;
        const int64_t slice = neighbours ? ceil_div(pack_terms<Packed_b>, Isa::step) * Isa::step : depth;
        for (int64_t p = 0; p < depth; p += slice) {
            // Pieces of rows of bytes are too short for the processor to see the next coming: a share of these
            // is fetched with each panel, row by row (256 x 4096 x 4096: 3 %; longer ones of floats: none).
            const bool fetches = sizeof(ElemB) == 1 && neighbours && p + slice < depth;
            const ElemB* row = lines.from(first, p + slice).data;
            int64_t col = 0;
            for (int64_t t = first; t < last; t += tile_cols) {
                for (int64_t byte = 0; fetches && byte < slice * tile_cols; byte += 64) {
                    __builtin_prefetch(row + col, 0, 1);
                    col += 64;
                    if (col >= last - first) {
                        col = 0;
                        row += lines.along;
                    }
                }
                const int64_t width = std::min<int64_t>(tile_cols, last - t);
                Pack_b::panel(lines.from(t, p), width, std::min(slice, depth - p),
                              to + t * Depth<Isa>::padded(depth) + p * whole_vectors<Isa>(width));
            }
        }
    }

    static int64_t panel_offset(int64_t begin, int64_t depth, int64_t j, int64_t n) {
        return begin * whole_vectors<Isa>(n) + j * Depth<Isa>::padded(depth);
    }

    template <class I, class Elem>
    friend void pack(Operand<Elem> b, typename I::Packed_b* to, int64_t n, int64_t k);

    Operand<ElemA> a_;
    SourceB b_;
    Out* out_;
    int64_t m_, n_, k_;
    Depth<Isa> depth_;
    const Epilogue& epilogue_;
    int64_t block_rows_ = 0, block_cols_ = 0;
};

// Bytes that pack() writes for a B of k terms and n columns, to an address aligned to a cache line.
template <class Isa> int64_t packed_bytes(int64_t n, int64_t k) {
    return Depth<Isa>::padded(k) * whole_vectors<Isa>(n) * int64_t{sizeof(typename Isa::Packed_b)};
}

// B to its packed form, for any number of products with Packed<Isa>{to}.
template <class Isa, class Elem>
void pack(Operand<Elem> b, typename Isa::Packed_b* to, int64_t n, int64_t k) {
    using Whole = Gemm<Isa, Elem, Operand<Elem>, typename Isa::Acc, Store<Isa>>;
    const Depth<Isa> all(k);
    const int64_t panels = ceil_div(n, Whole::tile_cols);
    opw::parallel_for(all.blocks * panels, 8, [&](int64_t first, int64_t last) {
        for (int64_t task = first; task < last; ++task) {
            const int64_t block = task / panels, j = task % panels * Whole::tile_cols;
            const int64_t begin = all.begin(block), depth = all.begin(block + 1) - begin;
            Whole::pack_panels(cols_of(b).from(j, begin), 0, std::min<int64_t>(Whole::tile_cols, n - j),
                               depth, to + Whole::panel_offset(begin, depth, j, n));
        }
    });
}

// out[m, n] = epilogue(a[m, k] * b[k, n]) on the instruction set `Isa`, in whichever way suits the
// sizes; `b` is an Operand or Packed. `out` is contiguous.
template <class Isa, class ElemA, class SourceB, class Out, class Epilogue = Store<Isa>>
void multiply(Operand<ElemA> a, SourceB b, Out* out, int64_t m, int64_t n, int64_t k,
              const Epilogue& epilogue = {}) {
    if (m == 0 || n == 0) return;
    if constexpr (!std::is_same_v<SourceB, Packed<Isa>>) {
        if constexpr (Isa::group > 1) {
            using Thin = typename Isa::Thin;
            constexpr bool tiled = !std::is_same_v<Isa, Thin>;
            if (thin_dot<Thin>(rows_of(a), cols_of(b), out, m, n, k, epilogue, tiled)) return;
        } else {
            const Lines<ElemA> rows = rows_of(a);
            const Lines<typename SourceB::Element> cols = cols_of(b);
            const Thin_out<Out, Epilogue> straight{out, n, false, epilogue}, turned{out, n, true, epilogue};
            const int64_t row = k * int64_t{sizeof(*a.data)}, col = k * int64_t{sizeof(*b.data)};
            const int64_t most_m = cols.along == 1 ? few_dot_rows(col, n * col) : few_rows;
            const int64_t most_n = rows.along == 1 ? few_dot_cols(row) : few_cols;
            if (m <= most_m && thin<Isa>(rows, m, cols, n, k, straight)) return;
            if (n <= most_n && m > most_m && thin<Isa>(cols, n, rows, m, k, turned)) return;
            if (m <= few_turned_rows<typename Isa::Packed_b>(k) && cols.along == 1 && cols.across != 1) {
                return few_rows_of_tiles<Isa>(rows, m, cols, n, k, straight);
            }
        }
    }
    Gemm<Isa, ElemA, SourceB, Out, Epilogue>(a, b, out, m, n, k, epilogue).run();
}

}  // namespace gemm
