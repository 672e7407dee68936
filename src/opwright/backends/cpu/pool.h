// The threads behind opw::Threads: made once, spinning briefly for the next job, then asleep.
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "environment.h"
#include "opwright/call.h"

namespace opw::host {

using Task = void (*)(void*, std::int64_t);

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// 15 to 40 us: a thread that sleeps takes 5 to 50 us to wake, so waiting longer than that awake
// only takes the core from somebody else.
constexpr int kSpins = 1000;

inline void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

inline void futex_wake(const std::atomic<std::uint32_t>& word, int count) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

// OMP_THREAD_LIMIT caps the threads of a whole process, whoever makes them.
inline std::int64_t thread_limit() {
    constexpr std::int64_t most = 1024;
    const char* text = std::getenv("OMP_THREAD_LIMIT");
    const long long limit = text ? std::strtoll(text, nullptr, 10) : 0;
    return limit > 0 ? std::min<std::int64_t>(limit, most) : most;
}

class Pool {
  public:
    // `on_start` runs first on every new thread. Pools are never destroyed: their threads would
    // have to be joined while exit() may hold them anywhere. Only stop() ends the threads.
    explicit Pool(void (*on_start)()) : on_start_(on_start) {}
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    std::int64_t limit() const { return limit_; }

    // Ends the threads and waits for that: before the library with their code is unloaded. No call
    // may come after it. False from inside a task, which cannot wait for its own thread.
    bool stop() {
        if (inside_task()) return false;
        stopping_.store(true);
        job_.fetch_add(1);
        futex_wake(job_, INT_MAX);
        for (std::thread& thread : made_) thread.join();
        made_.clear();
        return true;
    }

    // Every index in [0, tasks), on the caller and at most `helpers` other threads. A task that
    // calls in again, and a second caller at the same time, do their tasks themselves: the cores
    // are taken anyway, and nobody waits for anybody. (inside_task() comes first: to try the lock
    // that one holds already is undefined.)
    void run(std::int64_t helpers, std::int64_t tasks, Task task, void* argument) {
        helpers = std::min({helpers, tasks - 1, limit_ - 1});
        std::unique_lock<std::mutex> mine(one_caller_, std::defer_lock);
        if (helpers <= 0 || inside_task() || !mine.try_lock()) {
            for (std::int64_t index = 0; index < tasks; ++index) task(argument, index);
            return;
        }
        task_ = task;
        argument_ = argument;
        tasks_ = tasks;
        failed_.store(false, std::memory_order_relaxed);
        next_.store(0, std::memory_order_relaxed);
        open(static_cast<std::uint64_t>(start_threads(helpers)));
        inside_task() = true;
        work();
        inside_task() = false;
        close();
        if (failed_.load(std::memory_order_relaxed)) {
            const std::exception_ptr error = std::exchange(error_, nullptr);
            mine.unlock();
            std::rethrow_exception(error);
        }
    }

  private:
    // state_: the job's number in the upper 32 bits, then 16 bits of places still free for threads
    // to join, then 16 bits of threads at work. A thread that wakes after close() finds no place,
    // so the caller never has to wait for one that slept through the job.
    static constexpr std::uint64_t kPlace = std::uint64_t{1} << 16;
    static constexpr std::uint64_t kPlaces = std::uint64_t{0xFFFF} << 16;
    static constexpr std::uint64_t kWorking = 0xFFFF;

    static bool& inside_task() {
        thread_local bool inside = false;
        return inside;
    }

    void open(std::uint64_t places) {
        const std::uint32_t job = job_.load(std::memory_order_relaxed) + 1;
        state_.store(std::uint64_t{job} << 32 | places * kPlace, std::memory_order_release);
        job_.store(job);
        // Sequentially consistent with the sleeper's own two steps (count itself, look at job_):
        // either it sees the new job or we see that it sleeps.
        if (sleepers_.load() > 0) futex_wake(job_, static_cast<int>(places));
    }

    void close() {
        state_.fetch_and(~kPlaces);
        for (int spin = 0;; ++spin) {
            const std::uint32_t seen = left_.load();
            if ((state_.load(std::memory_order_acquire) & kWorking) == 0) return;
            if (spin < kSpins) {
                relax();
                continue;
            }
            caller_sleeps_.store(true);
            if ((state_.load(std::memory_order_acquire) & kWorking) != 0) futex_wait(left_, seen);
            caller_sleeps_.store(false);
        }
    }

    // Tasks that leave other rounding behind, say, do not do so to the next job's.
    void work() {
        const FloatEnvironment before;
        work_off();
        before.restore();
    }

    void work_off() {
        for (;;) {
            const std::int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
            if (index >= tasks_) return;
            try {
                task_(argument_, index);
            } catch (...) {
                if (!failed_.exchange(true)) error_ = std::current_exception();
                next_.store(tasks_, std::memory_order_relaxed);
                return;
            }
        }
    }

    bool join() {
        std::uint64_t state = state_.load(std::memory_order_acquire);
        while (state & kPlaces) {
            if (state_.compare_exchange_weak(state, state - kPlace + 1)) return true;
        }
        return false;
    }

    void serve() {
        if (on_start_) on_start_();
        inside_task() = true;
        std::uint32_t seen = 0;  // so that a thread made for a job looks for it at once
        for (int spin = 0;; ++spin) {
            const std::uint32_t job = job_.load(std::memory_order_acquire);
            if (job == seen) {
                if (spin < kSpins) {
                    relax();
                    continue;
                }
                sleepers_.fetch_add(1);
                if (job_.load() == seen) futex_wait(job_, seen);
                sleepers_.fetch_sub(1);
                continue;
            }
            if (stopping_.load()) return;
            seen = job;
            spin = 0;
            if (!join()) continue;
            work();
            state_.fetch_sub(1);
            left_.fetch_add(1);
            if (caller_sleeps_.load()) futex_wake(left_, 1);
        }
    }

    // How many of the threads wanted exist; the system may grant fewer.
    std::int64_t start_threads(std::int64_t wanted) {
        if (started_ < wanted) {
            // Signals meant for the process belong to the host's own threads. Faults stay open:
            // one that is blocked kills the process without asking its handler.
            sigset_t all, before;
            sigfillset(&all);
            for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&all, fault);
            pthread_sigmask(SIG_SETMASK, &all, &before);
            try {
                for (; started_ < wanted; ++started_) made_.emplace_back([this] { serve(); });
            } catch (const std::system_error&) {
                // Too many threads on this machine: the tasks still all run, on those there are.
            } catch (const std::bad_alloc&) {
                // The same for memory.
            }
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
        }
        return std::min(started_, wanted);
    }

    void (*const on_start_)();
    const std::int64_t limit_ = thread_limit();
    std::mutex one_caller_;
    std::int64_t started_ = 0;
    std::vector<std::thread> made_;
    std::atomic<bool> stopping_{false};
    Task task_ = nullptr;
    void* argument_ = nullptr;
    std::int64_t tasks_ = 0;
    std::exception_ptr error_;
    // Each on its own line of 64 bytes: all threads write next_ while others read the rest.
    alignas(64) std::atomic<std::int64_t> next_{0};
    alignas(64) std::atomic<std::uint64_t> state_{0};
    alignas(64) std::atomic<std::uint32_t> job_{0};
    std::atomic<std::int32_t> sleepers_{0};
    alignas(64) std::atomic<std::uint32_t> left_{0};
    std::atomic<bool> caller_sleeps_{false};
    std::atomic<bool> failed_{false};
};

// What one call is granted of a pool.
struct Grant : Threads {
    Grant(Pool& from, std::int64_t asked)
        : Threads{std::max<std::int64_t>(1, std::min(asked, from.limit())), &run_granted},
          pool(from) {}

    Pool& pool;

  private:
    static void run_granted(const Threads* self, std::int64_t tasks, Task task, void* argument) {
        static_cast<const Grant*>(self)->pool.run(self->threads - 1, tasks, task, argument);
    }
};

}  // namespace opw::host
