// Kernels in the caller's own process: loading them, and calling them with threads and without
// letting C++ exceptions out.
#include <dlfcn.h>
#include <fenv.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "environment.h"
#include "exceptions.h"
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

// libgomp's way to run a function on each thread of a team, the caller's own pool.
using Fork = void (*)(void (*function)(void*), void* data, unsigned threads, unsigned flags);

// Threads that belong to the caller. Two pools on the same cores slow each other: libgomp's threads
// spin for milliseconds after a parallel region, on cores that ours would want.
class Borrowed : public opw::Threads {
  public:
    Borrowed(Fork fork, std::int64_t asked)
        : opw::Threads{std::max<std::int64_t>(1, asked), &run_on_team}, fork_(fork) {}

  private:
    struct Job {
        std::int64_t tasks;
        void (*task)(void*, std::int64_t);
        void* argument;
        std::atomic<std::int64_t> next{0};
        std::atomic<bool> failed{false};
        std::exception_ptr error = nullptr;
    };

    // The team may have fewer threads than asked for (OMP_THREAD_LIMIT, or a call from within a
    // parallel region), so tasks are taken by number, not by thread.
    static void work(void* data) {
        const opw::host::FloatEnvironment before;
        work_off(*static_cast<Job*>(data));
        before.restore();
    }

    static void work_off(Job& job) {
        for (;;) {
            const std::int64_t index = job.next.fetch_add(1, std::memory_order_relaxed);
            if (index >= job.tasks) return;
            try {
                job.task(job.argument, index);
            } catch (...) {
                if (!job.failed.exchange(true)) job.error = std::current_exception();
                job.next.store(job.tasks, std::memory_order_relaxed);
                return;
            }
        }
    }

    static void run_on_team(const opw::Threads* self, std::int64_t tasks,
                            void (*task)(void*, std::int64_t), void* argument) {
        Job job{tasks, task, argument};
        const std::int64_t team = std::min(self->threads, tasks);
        static_cast<const Borrowed*>(self)->fork_(&work, &job, static_cast<unsigned>(team), 0);
        if (job.error) std::rethrow_exception(job.error);
    }

    Fork fork_;
};

const char* keep(std::string text) {
    thread_local std::string kept;
    kept = std::move(text);
    return kept.c_str();
}

// Null, or what the kernel threw.
const char* enter(const void* kernel, void* const* tensors, const char* values,
                  const opw::Threads& granted) {
    const auto* loaded = static_cast<const Loaded*>(kernel);
    const opw::Call call{tensors, reinterpret_cast<const opw::Value*>(values), &granted};
    // The number is the calling thread's setting, which other libraries with OpenMP share.
    const bool openmp = loaded->omp_set_num_threads && loaded->omp_get_max_threads;
    const int before = openmp ? loaded->omp_get_max_threads() : 0;
    if (openmp) loaded->omp_set_num_threads(static_cast<int>(granted.threads));
    const opw::host::FloatEnvironment environment;  // the caller's own arithmetic goes on with it
    const char* thrown = nullptr;
    try {
        loaded->entry(&call);
    } catch (...) {
        thrown = keep(opw::host::describe_exception());
    }
    environment.restore();
    if (openmp) loaded->omp_set_num_threads(before);
    return thrown;
}

}  // namespace

#include "fastcall.h"

// The kernel in the shared library at `path`, its function `name`; null, and the reason in `error`, where
// there is none.
OPW_EXPORT const void* opw_load(const char* path, const char* name, const char** error) {
    // Start-up code of a library may change how this thread rounds, or flush its subnormals to
    // zero; the caller's own arithmetic must not change for it.
    fenv_t before;
    fegetenv(&before);
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    fesetenv(&before);
    auto* loaded = new Loaded{};
    if (handle) {
        loaded->entry = reinterpret_cast<decltype(loaded->entry)>(dlsym(handle, name));
    }
    if (!loaded->entry) {
        const char* reason = dlerror();
        *error = keep(reason ? reason : std::string("it has no function ") + name);
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
// interface (0 for one left out), then the values. Null, or what the kernel threw.
OPW_EXPORT const char* opw_invoke(const void* kernel, const char* words, std::int64_t count,
                                  std::int64_t threads) {
    const auto* interfaces = reinterpret_cast<const ArrayInterface* const*>(words);
    thread_local std::vector<void*> tensors;
    tensors.clear();
    for (std::int64_t i = 0; i < count; ++i) tensors.push_back(interfaces[i] ? interfaces[i]->data : nullptr);
    const opw::host::Grant grant(pool(), threads);
    return enter(kernel, tensors.data(), words + 8 * count, grant);
}

// The same by the tensors' own addresses. `words` are the kernel, the number of tensors, the threads
// asked for, the address of the caller's GOMP_parallel or 0 for threads of our own; then the
// tensors, then the values.
OPW_EXPORT const char* opw_invoke_at(const char* words) {
    struct Head {
        const void* kernel;
        std::int64_t count, threads;
        std::uintptr_t fork;
    } head;
    std::memcpy(&head, words, sizeof head);
    words += sizeof head;
    auto* const* tensors = reinterpret_cast<void* const*>(words);
    const char* values = words + 8 * head.count;
    if (head.fork != 0) {
        const Borrowed team(reinterpret_cast<Fork>(head.fork), head.threads);
        return enter(head.kernel, tensors, values, team);
    }
    const opw::host::Grant grant(pool(), head.threads);
    return enter(head.kernel, tensors, values, grant);
}
