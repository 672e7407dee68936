// The blocked product: which part of A, B and C is in which cache, and who computes it.
//
//   for columns of C, `Blocks::cols` at a time
//     for the sums, `Blocks::depth` terms at a time
//       pack that part of B into column panels as wide as the micro-kernel's tile        (L2)
//       for row panels of C as high as the tile: pack that part of A                      (L1)
//         for column panels: micro-kernel                                          (registers)
//
// Packing widens 16-bit elements, puts what the micro-kernel reads next to each other, and pads column
// panels with zeros, so that the micro-kernel reads whole vectors however the sizes fall.
// Sums of 16-bit elements are kept as floats beside the output until the last block is added.
//
// Every element is summed in an order that depends on k alone: any number of threads gives the same
// bits.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "blocks.h"
#include "micro_kernel.h"
#include "opwright/parallel.h"
#include "thin.h"
#include "vectors.h"
#include "workspace.h"

namespace gemm {

template <class Isa, class Elem>
class Gemm {
    using Acc = typename Isa::Acc;
    using Block = Blocks<Acc>;

    static constexpr int tile_cols = Isa::lanes * Isa::vectors;
    static constexpr int line = 64 / sizeof(Acc);
    // A line more than a power of two: the rows of a panel do not compete for one set of L1.
    static constexpr int a_stride = Block::depth + line;
    static constexpr bool sums_beside = !std::is_same_v<Elem, Acc>;

    static_assert(Block::cols % tile_cols == 0, "a block is made of whole column panels");

public:
    Gemm(const Elem* a, const Elem* b, Elem* out, int64_t m, int64_t n, int64_t k)
        : a_(a), b_(b), out_(out), m_(m), n_(n), k_(k),
          depth_blocks_(std::max<int64_t>(1, ceil_div(k, Block::depth))) {}

    void run() {
        const Grid grid = grid_for(opw::threads());
        const int64_t rows = ceil_div(m_, grid.rows), cols = ceil_div(n_, grid.cols) + tile_cols;
        block_rows_ = sums_beside && depth_blocks_ > 1 ? std::min(rows, Block::rows) : Isa::rows;
        block_cols_ = std::min(Block::cols, cols / tile_cols * tile_cols);
        const int64_t depth = std::min(k_, Block::depth);
        const int64_t sums = sums_beside ? block_rows_ * block_cols_ : 0;
        const int64_t share = Isa::rows * a_stride + depth * block_cols_ + sums;
        Acc* memory = scratch<Acc>(share * grid.rows * grid.cols);
        opw::parallel_for(grid.rows * grid.cols, 1, [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; ++task) {
                Acc* own = memory + task * share;
                multiply(part_of(grid, task),
                         Scratch{own, own + Isa::rows * a_stride, own + (share - sums)});
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
    struct Scratch {
        Acc *a, *b, *sums;
    };
    using Kernel = void (*)(int64_t, const Acc*, const Acc*, Acc*, int64_t, int, bool);

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
            if (!sums_beside || depth_blocks_ == 1) {
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
        const int64_t rows = row_end - row_begin, panels = ceil_div(rows, Isa::rows);
        for (int64_t block = 0; block < depth_blocks_; ++block) {
            const int64_t begin = cut(k_, block, depth_blocks_);
            const int64_t depth = cut(k_, block + 1, depth_blocks_) - begin;
            pack_b(b_ + begin * n_ + j, depth, cols, scratch.b);
            for (int64_t panel = 0; panel < panels; ++panel) {
                const int64_t top = cut(rows, panel, panels);
                const int64_t height = cut(rows, panel + 1, panels) - top;
                const Elem* a = a_ + (row_begin + top) * k_ + begin;
                for (int64_t i = 0; i < height; ++i) {
                    convert<Isa>(a + i * k_, scratch.a + i * a_stride, depth);
                }
                Elem* out = out_ + (row_begin + top) * n_ + j;
                if constexpr (sums_beside) {
                    Acc* sums = scratch.sums + (depth_blocks_ > 1 ? top * block_cols_ : 0);
                    multiply_panel(scratch, height, cols, depth, sums, block_cols_, block > 0);
                    if (block + 1 < depth_blocks_) continue;
                    for (int64_t i = 0; i < height; ++i) {
                        convert<Isa>(sums + i * block_cols_, out + i * n_, cols);
                    }
                } else {
                    multiply_panel(scratch, height, cols, depth, out, n_, block > 0);
                }
            }
        }
    }

    static void multiply_panel(const Scratch& scratch, int64_t height, int64_t cols, int64_t depth,
                               Acc* c, int64_t ldc, bool add) {
        for (int64_t j = 0; j < cols; j += tile_cols) {
            const int64_t width = std::min<int64_t>(tile_cols, cols - j);
            const int64_t vectors = ceil_div(width, Isa::lanes);
            const int last = static_cast<int>(width - (vectors - 1) * Isa::lanes);
            kernels[vectors - 1][height - 1](depth, scratch.a, scratch.b + j * depth, c + j, ldc, last,
                                             add);
        }
    }

    // Column panels one after the other, each `depth` rows of as many whole vectors as it needs.
    void pack_b(const Elem* b, int64_t depth, int64_t cols, Acc* to) const {
        for (int64_t j = 0; j < cols; j += tile_cols) {
            const int64_t width = std::min<int64_t>(tile_cols, cols - j);
            const Elem* row = b + j;
            if (width == tile_cols) {
                for (int64_t p = 0; p < depth; ++p, row += n_, to += tile_cols) {
#pragma GCC unroll 4
                    for (int v = 0; v < Isa::vectors; ++v) {
                        Isa::store(to + v * Isa::lanes, Isa::load(row + v * Isa::lanes));
                    }
                }
            } else {
                const int64_t padded = ceil_div(width, Isa::lanes) * Isa::lanes;
                for (int64_t p = 0; p < depth; ++p, row += n_, to += padded) {
                    convert<Isa>(row, to, width);
                    std::fill(to + width, to + padded, Acc{0});
                }
            }
        }
    }

    template <int Vectors, int... I>
    static constexpr std::array<Kernel, Isa::rows> kernels_for(std::integer_sequence<int, I...>) {
        return {{&micro_kernel<Isa, I + 1, Vectors, a_stride>...}};
    }
    // [vectors - 1][rows - 1]: a kernel for every height, so that no row is computed in vain.
    static constexpr std::array<std::array<Kernel, Isa::rows>, 2> kernels{
        {kernels_for<1>(std::make_integer_sequence<int, Isa::rows>{}),
         kernels_for<2>(std::make_integer_sequence<int, Isa::rows>{})}};

    const Elem* a_;
    const Elem* b_;
    Elem* out_;
    int64_t m_, n_, k_;
    int64_t depth_blocks_;
    int64_t block_rows_ = 0, block_cols_ = 0;
};

// out[m, n] = a[m, k] * b[k, n] on the instruction set `Isa`, in whichever way suits the sizes.
template <class Isa, class Elem>
void multiply(const Elem* a, const Elem* b, Elem* out, int64_t m, int64_t n, int64_t k) {
    if (m == 0 || n == 0) return;
    if (m <= few) return few_rows<Isa>(a, b, out, m, n, k);
    if (n == 1) return few_cols<Isa, 1>(a, b, out, m, k);
    if (n == 2) return few_cols<Isa, 2>(a, b, out, m, k);
    Gemm<Isa, Elem>(a, b, out, m, n, k).run();
}

}  // namespace gemm
