// Scratch memory that a thread keeps from call to call: fresh pages cost 0.1 us each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace gemm {

class Workspace {
public:
    Workspace() = default;
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;
    ~Workspace() { release(); }

    // At least `bytes`, aligned to a cache line, valid until the next call. Throws std::bad_alloc.
    void* reserve(std::size_t bytes) {
        if (bytes > size_) {
            release();
            memory_ = ::operator new(bytes, alignment);
            size_ = bytes;
        }
        return memory_;
    }

private:
    static constexpr std::align_val_t alignment{64};

    void release() {
        if (memory_) ::operator delete(memory_, alignment);
        memory_ = nullptr;
        size_ = 0;
    }

    void* memory_ = nullptr;
    std::size_t size_ = 0;
};

// Room for `count` elements until this thread asks again.
template <class Acc>
Acc* scratch(std::int64_t count) {
    static thread_local Workspace workspace;
    return static_cast<Acc*>(workspace.reserve(static_cast<std::size_t>(count) * sizeof(Acc)));
}

}  // namespace gemm
