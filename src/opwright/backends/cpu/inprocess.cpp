// Kernels in the caller's own process: loading them, and calling them with threads and without
// letting C++ exceptions out.
#include <dlfcn.h>
#include <fenv.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "opwright/call.h"
#include "pool.h"

#define OPW_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Loaded {
    void (*entry)(const opw::Call*);
    void (*omp_set_num_threads)(int);  // both null where the kernel brought no OpenMP in
    int (*omp_get_max_threads)();
};

// What an array's __array_struct__ points to, as NumPy's array interface protocol lays it down.
struct ArrayInterface {
    int two;
    int dimensions;
    char kind;
    int item_size;
    int flags;
    std::intptr_t* shape;
    std::intptr_t* strides;
    void* data;
    void* description;
};

std::atomic<opw::host::Pool*> the_pool{nullptr};

opw::host::Pool& pool() {
    if (opw::host::Pool* existing = the_pool.load(std::memory_order_acquire)) return *existing;
    // A child of fork() has none of the threads, so it starts over.
    static const int registered = pthread_atfork(nullptr, nullptr, [] { the_pool.store(nullptr); });
    (void)registered;
    auto* made = new opw::host::Pool(nullptr);
    opw::host::Pool* existing = nullptr;
    if (the_pool.compare_exchange_strong(existing, made)) return *made;
    delete made;  // another thread was first; this one has started no threads
    return *existing;
}

const char* keep(std::string text) {
    thread_local std::string kept;
    kept = std::move(text);
    return kept.c_str();
}

}  // namespace

// The kernel in the shared library at `path`; null, and the reason in `error`, where there is none.
OPW_EXPORT const void* opw_load(const char* path, const char** error) {
    // Start-up code of a library may change how this thread rounds, or flush its subnormals to
    // zero; the caller's own arithmetic must not change for it.
    fenv_t before;
    fegetenv(&before);
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    fesetenv(&before);
    auto* loaded = new Loaded{};
    if (handle) {
        loaded->entry = reinterpret_cast<decltype(loaded->entry)>(dlsym(handle, "opw_entry"));
    }
    if (!loaded->entry) {
        const char* reason = dlerror();
        *error = keep(reason ? reason : "it has no function opw_entry");
        delete loaded;
        return nullptr;
    }
    loaded->omp_set_num_threads = reinterpret_cast<decltype(loaded->omp_set_num_threads)>(
        dlsym(handle, "omp_set_num_threads"));
    loaded->omp_get_max_threads = reinterpret_cast<decltype(loaded->omp_get_max_threads)>(
        dlsym(handle, "omp_get_max_threads"));
    return loaded;
}

// Calls the kernel; `words` are 8 bytes each: for every tensor the address of its NumPy array
// interface, then the values. Null, or what the kernel threw.
OPW_EXPORT const char* opw_invoke(const void* kernel, const char* words, std::int64_t count,
                                  std::int64_t threads) {
    const auto* loaded = static_cast<const Loaded*>(kernel);
    const auto* interfaces = reinterpret_cast<const ArrayInterface* const*>(words);
    thread_local std::vector<void*> tensors;
    tensors.clear();
    for (std::int64_t i = 0; i < count; ++i) tensors.push_back(interfaces[i]->data);
    const opw::host::Grant grant(pool(), threads);
    const opw::Call call{tensors.data(), reinterpret_cast<const opw::Value*>(words) + count, &grant};
    // The number is the calling thread's setting, which other libraries with OpenMP share.
    const bool openmp = loaded->omp_set_num_threads && loaded->omp_get_max_threads;
    const int before = openmp ? loaded->omp_get_max_threads() : 0;
    if (openmp) loaded->omp_set_num_threads(static_cast<int>(grant.threads));
    const char* thrown = nullptr;
    try {
        loaded->entry(&call);
    } catch (const std::exception& error) {
        thrown = keep(error.what());
    } catch (...) {
        thrown = "an exception that is no std::exception";
    }
    if (openmp) loaded->omp_set_num_threads(before);
    return thrown;
}
