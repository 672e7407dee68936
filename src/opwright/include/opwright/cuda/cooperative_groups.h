// Cooperative groups: the block, tiles of a warp, the lanes that came along, and the whole grid.
#pragma once

#include "cuda_runtime.h"

namespace cooperative_groups {

namespace detail {
OPW_INLINE unsigned thread_in_block() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
OPW_INLINE unsigned threads_in_block() { return blockDim.x * blockDim.y * blockDim.z; }
OPW_INLINE unsigned long long block_in_grid() {
    return blockIdx.x + static_cast<unsigned long long>(gridDim.x) * (blockIdx.y + static_cast<unsigned long long>(gridDim.y) * blockIdx.z);
}
}  // namespace detail

class thread_block {
public:
    __attribute__((always_inline)) static void sync() { __syncthreads(); }
    static unsigned thread_rank() { return detail::thread_in_block(); }
    static unsigned num_threads() { return detail::threads_in_block(); }
    static unsigned size() { return detail::threads_in_block(); }
    static dim3 group_index() { return dim3(blockIdx); }
    static dim3 thread_index() { return dim3(threadIdx); }
    static dim3 group_dim() { return blockDim; }
    static dim3 dim_threads() { return blockDim; }
};

#define OPW_SYNC_HERE __attribute__((always_inline)) inline
OPW_SYNC_HERE thread_block this_thread_block() { return thread_block(); }

class grid_group {
public:
    OPW_SYNC_HERE void sync() const { ::opw::grid_barrier(); }
    bool is_valid() const { return ::opw::grid_is_cooperative(); }
    unsigned long long thread_rank() const {
        return detail::block_in_grid() * detail::threads_in_block() + detail::thread_in_block();
    }
    unsigned long long num_threads() const { return num_blocks() * detail::threads_in_block(); }
    unsigned long long size() const { return num_threads(); }
    unsigned long long num_blocks() const { return static_cast<unsigned long long>(gridDim.x) * gridDim.y * gridDim.z; }
    unsigned long long block_rank() const { return detail::block_in_grid(); }
    dim3 group_dim() const { return gridDim; }
    dim3 block_index() const { return dim3(blockIdx); }
};
OPW_SYNC_HERE grid_group this_grid() { return grid_group(); }

// Lanes of one warp, given by a mask; ranks count the lanes of the mask.
class coalesced_group {
public:
    OPW_SYNC_HERE explicit coalesced_group(unsigned mask) : mask_(mask) {}
    OPW_SYNC_HERE void sync() const { __syncwarp(mask_); }
    OPW_SYNC_HERE unsigned num_threads() const { return static_cast<unsigned>(__popc(mask_)); }
    OPW_SYNC_HERE unsigned size() const { return num_threads(); }
    OPW_SYNC_HERE unsigned thread_rank() const {
        return static_cast<unsigned>(__popc(mask_ & ((1u << __laneid()) - 1)));
    }
    OPW_SYNC_HERE unsigned meta_group_rank() const { return 0; }
    OPW_SYNC_HERE unsigned meta_group_size() const { return 1; }
    template <class T> OPW_SYNC_HERE T shfl(T value, unsigned rank) const {
        return __shfl_sync(mask_, value, static_cast<int>(lane_of(rank % num_threads())));
    }
    template <class T> OPW_SYNC_HERE T shfl_up(T value, unsigned delta) const {
        const unsigned rank = thread_rank();
        return __shfl_sync(mask_, value, static_cast<int>(lane_of(rank >= delta ? rank - delta : rank)));
    }
    template <class T> OPW_SYNC_HERE T shfl_down(T value, unsigned delta) const {
        const unsigned rank = thread_rank();
        return __shfl_sync(mask_, value, static_cast<int>(lane_of(rank + delta < num_threads() ? rank + delta : rank)));
    }
    OPW_SYNC_HERE int any(int predicate) const { return __any_sync(mask_, predicate); }
    OPW_SYNC_HERE int all(int predicate) const { return __all_sync(mask_, predicate); }
    OPW_SYNC_HERE unsigned ballot(int predicate) const { return packed(__ballot_sync(mask_, predicate)); }
    template <class T> OPW_SYNC_HERE unsigned match_any(T value) const { return packed(__match_any_sync(mask_, value)); }
    OPW_SYNC_HERE unsigned opw_mask() const { return mask_; }

protected:
    OPW_SYNC_HERE unsigned lane_of(unsigned rank) const {
        unsigned rest = mask_;
        for (unsigned i = 0; i < rank; ++i) rest &= rest - 1;
        return static_cast<unsigned>(__builtin_ctz(rest));
    }
    OPW_SYNC_HERE unsigned packed(unsigned lanes) const {
        unsigned result = 0, rank = 0;
        for (unsigned rest = mask_; rest; rest &= rest - 1, ++rank) {
            if (lanes >> __builtin_ctz(rest) & 1) result |= 1u << rank;
        }
        return result;
    }
    unsigned mask_;
};
OPW_SYNC_HERE coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

template <unsigned size_, class Parent = void> class thread_block_tile {
    static_assert(size_ >= 1 && size_ <= 32 && (size_ & (size_ - 1)) == 0, "tiles of more than a warp are not emulated");

public:
    thread_block_tile() = default;
    // A tile may forget which group it is a part of.
    template <class Other> thread_block_tile(const thread_block_tile<size_, Other>&) {}
    OPW_SYNC_HERE void sync() const { __syncwarp(mask()); }
    static constexpr unsigned num_threads() { return size_; }
    static constexpr unsigned size() { return size_; }
    OPW_SYNC_HERE unsigned thread_rank() const { return detail::thread_in_block() & (size_ - 1); }
    OPW_SYNC_HERE unsigned meta_group_rank() const { return detail::thread_in_block() / size_; }
    OPW_SYNC_HERE unsigned meta_group_size() const { return (detail::threads_in_block() + size_ - 1) / size_; }
    template <class T> OPW_SYNC_HERE T shfl(T value, int rank) const { return __shfl_sync(mask(), value, rank, size_); }
    template <class T> OPW_SYNC_HERE T shfl_up(T value, unsigned delta) const { return __shfl_up_sync(mask(), value, delta, size_); }
    template <class T> OPW_SYNC_HERE T shfl_down(T value, unsigned delta) const { return __shfl_down_sync(mask(), value, delta, size_); }
    template <class T> OPW_SYNC_HERE T shfl_xor(T value, int bits) const { return __shfl_xor_sync(mask(), value, bits, size_); }
    OPW_SYNC_HERE int any(int predicate) const { return __any_sync(mask(), predicate); }
    OPW_SYNC_HERE int all(int predicate) const { return __all_sync(mask(), predicate); }
    OPW_SYNC_HERE unsigned ballot(int predicate) const { return __ballot_sync(mask(), predicate) >> first(); }
    template <class T> OPW_SYNC_HERE unsigned match_any(T value) const { return __match_any_sync(mask(), value) >> first(); }
    template <class T> OPW_SYNC_HERE unsigned match_all(T value, int& predicate) const {
        return __match_all_sync(mask(), value, &predicate) >> first();
    }
    OPW_SYNC_HERE unsigned opw_mask() const { return mask(); }

private:
    OPW_SYNC_HERE unsigned first() const { return detail::thread_in_block() & 31 & ~(size_ - 1); }
    OPW_SYNC_HERE unsigned mask() const { return (size_ == 32 ? 0xffffffffu : (1u << (size_ & 31)) - 1) << first(); }
};

template <unsigned size, class Group> OPW_SYNC_HERE thread_block_tile<size, Group> tiled_partition(const Group&) {
    return thread_block_tile<size, Group>();
}
// A partition whose size is known at run time only.
OPW_SYNC_HERE coalesced_group tiled_partition(const thread_block&, unsigned size) {
    const unsigned first = detail::thread_in_block() & 31 & ~(size - 1);
    return coalesced_group((size >= 32 ? 0xffffffffu : (1u << size) - 1) << first);
}
template <class Group> OPW_SYNC_HERE coalesced_group labeled_partition(const Group& group, int label) {
    return coalesced_group(__match_any_sync(group.opw_mask(), label));
}
template <class Group> OPW_SYNC_HERE coalesced_group binary_partition(const Group& group, bool predicate) {
    const unsigned lanes = __ballot_sync(group.opw_mask(), predicate);
    return coalesced_group(predicate ? lanes : group.opw_mask() & ~lanes);
}
template <class Group> OPW_SYNC_HERE void sync(const Group& group) { group.sync(); }

template <class T> struct plus {
    OPW_SYNC_HERE T operator()(T a, T b) const { return a + b; }
};
template <class T> struct less {
    OPW_SYNC_HERE T operator()(T a, T b) const { return b < a ? b : a; }
};
template <class T> struct greater {
    OPW_SYNC_HERE T operator()(T a, T b) const { return a < b ? b : a; }
};
template <class T> struct bit_and {
    OPW_SYNC_HERE T operator()(T a, T b) const { return a & b; }
};
template <class T> struct bit_or {
    OPW_SYNC_HERE T operator()(T a, T b) const { return a | b; }
};
template <class T> struct bit_xor {
    OPW_SYNC_HERE T operator()(T a, T b) const { return a ^ b; }
};

template <class Group, class T, class Operation> OPW_SYNC_HERE T reduce(const Group& group, T value, Operation operation) {
    T result = group.shfl(value, 0);
    for (unsigned rank = 1; rank < group.num_threads(); ++rank) {
        const T other = group.shfl(value, static_cast<int>(rank));
        result = operation(result, other);
    }
    return result;
}
template <class Group, class T, class Operation> OPW_SYNC_HERE T inclusive_scan(const Group& group, T value, Operation operation) {
    T result = value;
    for (unsigned distance = 1; distance < group.num_threads(); distance *= 2) {
        const T other = group.shfl_up(result, distance);
        if (group.thread_rank() >= distance) result = operation(other, result);
    }
    return result;
}
template <class Group, class T> OPW_SYNC_HERE T inclusive_scan(const Group& group, T value) {
    return inclusive_scan(group, value, plus<T>());
}
template <class Group, class T> OPW_SYNC_HERE T exclusive_scan(const Group& group, T value) {
    const T inclusive = inclusive_scan(group, value, plus<T>());
    const T before = group.shfl_up(inclusive, 1);
    return group.thread_rank() == 0 ? T() : before;
}

}  // namespace cooperative_groups
