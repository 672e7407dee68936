// Scratch memory that a thread keeps from call to call: fresh pages cost 0.1 us each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

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
            alignment_ = std::align_val_t{bytes < huge_page ? line : huge_page};
            memory_ = ::operator new(bytes, alignment_);
            size_ = bytes;
#if defined(__linux__)
            // Fewer addresses to look up, where the system has such pages for those who ask (2048^3 on one
            // thread: bf16 and bytes 1 % faster). It may refuse; nothing depends on it.
            if (bytes >= huge_page) madvise(memory_, bytes, MADV_HUGEPAGE);
#endif
        }
        return memory_;
    }

private:
    static constexpr std::size_t line = 64, huge_page = std::size_t{2} << 20;

    void release() {
        if (memory_) ::operator delete(memory_, alignment_);
        memory_ = nullptr;
        size_ = 0;
    }

    void* memory_ = nullptr;
    std::size_t size_ = 0;
    std::align_val_t alignment_{line};
};

// Room for `count` elements until this thread asks again.
template <class Acc>
Acc* scratch(std::int64_t count) {
    static thread_local Workspace workspace;
    return static_cast<Acc*>(workspace.reserve(static_cast<std::size_t>(count) * sizeof(Acc)));
}

}  // namespace gemm
