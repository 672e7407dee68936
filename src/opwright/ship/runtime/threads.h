// The threads behind opw::Threads in a shipped library: its own pool, or the caller's.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <stdexcept>

#include "environment.h"
#include "memory.h"
#include "opwright/call.h"
#include "pool.h"

namespace opw::ship {

inline std::atomic<host::Pool*> own_pool{nullptr};

inline host::Pool& pool() {
    if (host::Pool* existing = own_pool.load(std::memory_order_acquire)) return *existing;
    auto* made = new host::Pool(nullptr);
    host::Pool* existing = nullptr;
    if (own_pool.compare_exchange_strong(existing, made)) return *made;
    delete made;  // another thread was first; this one has started no threads
    return *existing;
}

// Processors that this process may use.
inline std::int64_t processors() {
    cpu_set_t set;
    const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return std::min<std::int64_t>(std::max(1, count), host::thread_limit());
}

class OwnThreads : public Threads {
  public:
    explicit OwnThreads(std::int64_t granted) : Threads{granted, &run_here} {}

  private:
    static void run_here(const Threads* self, std::int64_t tasks, host::Task task, void* argument) {
        pool().run(self->threads - 1, tasks, task, argument);
    }
};

using ParallelFor = void (*)(void* pool, std::int64_t tasks, void (*task)(void*, std::int64_t),
                             void* argument);

// The caller's: C code, through which no exception may go.
class CallersThreads : public Threads {
  public:
    CallersThreads(ParallelFor run, void* callers_pool, std::int64_t granted)
        : Threads{granted, &run_there}, parallel_for_(run), pool_(callers_pool) {}

  private:
    struct Job {
        host::Task task;
        void* argument;
        std::atomic<std::int64_t> done{0};
        std::atomic<bool> failed{false};
        std::exception_ptr error;
    };

    static void run_task(void* data, std::int64_t index) {
        Job& job = *static_cast<Job*>(data);
        const host::FloatEnvironment before;
        try {
            if (!job.failed.load(std::memory_order_relaxed)) job.task(job.argument, index);
        } catch (...) {
            if (!job.failed.exchange(true)) job.error = std::current_exception();
        }
        before.restore();
        job.done.fetch_add(1);
    }

    static void run_there(const Threads* self, std::int64_t tasks, host::Task task, void* argument) {
        const auto& own = *static_cast<const CallersThreads*>(self);
        Job job{task, argument, {}, {}, nullptr};
        own.parallel_for_(own.pool_, tasks, &run_task, &job);
        if (job.error) std::rethrow_exception(job.error);
        if (job.done.load() != tasks) {
            throw std::runtime_error("the caller's parallel_for did not run every task once");
        }
    }

    ParallelFor parallel_for_;
    void* pool_;
};

inline void threads_after_fork() {
    own_pool.store(nullptr);  // the child has none of its threads
    memory_after_fork();
}

inline void end_threads() {
    host::Pool* pool = own_pool.exchange(nullptr);
    if (pool && pool->stop()) delete pool;
}

}  // namespace opw::ship
