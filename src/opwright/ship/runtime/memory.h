// The library's memory: every allocation of C++ code in it goes through the caller's allocator, and
// what its thread_local objects hold is given back when a thread ends or the library is unloaded.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace opw::ship {

struct Allocator {
    void* (*allocate)(void* self, std::size_t bytes, std::size_t alignment);
    void (*release)(void* self, void* memory, std::size_t bytes, std::size_t alignment);
    void* self;
};

inline void* from_libc(void*, std::size_t bytes, std::size_t alignment) {
    void* memory = nullptr;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}

inline void to_libc(void*, void* memory, std::size_t, std::size_t) { std::free(memory); }

struct Memory {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    Allocator allocator{&from_libc, &to_libc, nullptr};
};
inline Memory memory;

// Stands right before each block: whoever gave it gets it back, also after the allocator changed.
struct Header {
    Allocator from;
    void* start;
    std::size_t bytes;
    std::size_t alignment;
};
static_assert(sizeof(Header) <= 64, "the header must fit in front of a 64-byte aligned block");

// Null where there is no memory.
inline void* allocate(std::size_t bytes, std::size_t alignment) {
    alignment = std::max<std::size_t>(alignment, 64);
    if (bytes > SIZE_MAX - alignment) return nullptr;
    pthread_mutex_lock(&memory.lock);
    const Allocator from = memory.allocator;
    pthread_mutex_unlock(&memory.lock);
    void* start = from.allocate(from.self, bytes + alignment, alignment);
    if (!start) return nullptr;
    char* block = static_cast<char*>(start) + alignment;
    *reinterpret_cast<Header*>(block - sizeof(Header)) =
        Header{from, start, bytes + alignment, alignment};
    return block;
}

inline void release(void* block) {
    if (!block) return;
    const Header header = *reinterpret_cast<Header*>(static_cast<char*>(block) - sizeof(Header));
    header.from.release(header.from.self, header.start, header.bytes, header.alignment);
}

// The destructors of thread_local objects, kept here and not by the C library: that one would hold the
// library in memory until the thread ends, and dlclose() would free nothing.
struct Destructor {
    void (*destroy)(void*);
    void* object;
    Destructor* next;
};

struct ThreadObjects {
    Destructor* first;
    const std::atomic<bool>* busy;
    ThreadObjects* next;
    ThreadObjects** link;  // what points here
};

struct ThreadEnds {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_key_t key{};
    bool has_key = false;
    ThreadObjects* threads = nullptr;
};
inline ThreadEnds thread_ends;

// Set while this thread is in a call.
inline thread_local std::atomic<bool> thread_busy{false};

inline void destroy_objects(ThreadObjects* thread) {
    while (Destructor* entry = thread->first) {
        thread->first = entry->next;
        entry->destroy(entry->object);
        std::free(entry);
    }
    std::free(thread);
}

inline void thread_ended(void* value) {
    auto* thread = static_cast<ThreadObjects*>(value);
    pthread_mutex_lock(&thread_ends.lock);
    *thread->link = thread->next;
    if (thread->next) thread->next->link = thread->link;
    pthread_mutex_unlock(&thread_ends.lock);
    destroy_objects(thread);
}

inline int at_thread_end(void (*destroy)(void*), void* object) {
    pthread_mutex_lock(&thread_ends.lock);
    if (!thread_ends.has_key) {
        thread_ends.has_key = pthread_key_create(&thread_ends.key, &thread_ended) == 0;
    }
    auto* thread = thread_ends.has_key
                       ? static_cast<ThreadObjects*>(pthread_getspecific(thread_ends.key))
                       : nullptr;
    if (!thread && thread_ends.has_key) {
        thread = static_cast<ThreadObjects*>(std::malloc(sizeof(ThreadObjects)));
        if (thread && pthread_setspecific(thread_ends.key, thread) == 0) {
            *thread = ThreadObjects{nullptr, &thread_busy, thread_ends.threads, &thread_ends.threads};
            if (thread->next) thread->next->link = &thread->next;
            thread_ends.threads = thread;
        } else {
            std::free(thread);
            thread = nullptr;
        }
    }
    auto* entry = thread ? static_cast<Destructor*>(std::malloc(sizeof(Destructor))) : nullptr;
    if (entry) {
        *entry = Destructor{destroy, object, thread->first};
        thread->first = entry;
    }
    pthread_mutex_unlock(&thread_ends.lock);
    return entry ? 0 : -1;
}

// At unloading, and at exit(), where other threads may still be in a call: theirs is left alone.
inline void end_all_threads() {
    pthread_mutex_lock(&thread_ends.lock);
    if (thread_ends.has_key) pthread_key_delete(thread_ends.key);
    thread_ends.has_key = false;
    ThreadObjects* thread = thread_ends.threads;
    thread_ends.threads = nullptr;
    pthread_mutex_unlock(&thread_ends.lock);
    while (thread) {
        ThreadObjects* next = thread->next;
        if (!thread->busy->load()) destroy_objects(thread);
        thread = next;
    }
}

inline void memory_after_fork() {
    // Whoever held these locks is not in this process.
    memory.lock = PTHREAD_MUTEX_INITIALIZER;
    thread_ends.lock = PTHREAD_MUTEX_INITIALIZER;
}

inline void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
    if (void* block = allocate(bytes, alignment)) return block;
    throw std::bad_alloc();
}

}  // namespace opw::ship

// What compilers call for `static thread_local` objects with a destructor.
extern "C" int __cxa_thread_atexit(void (*destroy)(void*), void* object, void*) noexcept {
    return opw::ship::at_thread_end(destroy, object);
}

void* operator new(std::size_t bytes) { return opw::ship::allocate_or_throw(bytes, 16); }
void* operator new[](std::size_t bytes) { return opw::ship::allocate_or_throw(bytes, 16); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return opw::ship::allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
    return opw::ship::allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    return opw::ship::allocate(bytes, 16);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
    return opw::ship::allocate(bytes, 16);
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
    return opw::ship::allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
    return opw::ship::allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* block) noexcept { opw::ship::release(block); }
void operator delete[](void* block) noexcept { opw::ship::release(block); }
void operator delete(void* block, std::size_t) noexcept { opw::ship::release(block); }
void operator delete[](void* block, std::size_t) noexcept { opw::ship::release(block); }
void operator delete(void* block, std::align_val_t) noexcept { opw::ship::release(block); }
void operator delete[](void* block, std::align_val_t) noexcept { opw::ship::release(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { opw::ship::release(block); }
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept {
    opw::ship::release(block);
}
void operator delete(void* block, const std::nothrow_t&) noexcept { opw::ship::release(block); }
void operator delete[](void* block, const std::nothrow_t&) noexcept { opw::ship::release(block); }
void operator delete(void* block, std::align_val_t, const std::nothrow_t&) noexcept {
    opw::ship::release(block);
}
void operator delete[](void* block, std::align_val_t, const std::nothrow_t&) noexcept {
    opw::ship::release(block);
}
