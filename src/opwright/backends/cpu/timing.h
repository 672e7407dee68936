// The timing loop.
#pragma once

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace runner {

using Spans = std::vector<std::pair<const char*, std::size_t>>;

inline double now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

inline double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

// What reading the clock twice costs, 20 to 50 ns: a tenth of the shortest cold calls.
inline double clock_cost() {
    std::vector<double> costs(101);
    for (double& cost : costs) {
        const double start = now_ns();
        cost = now_ns() - start;
    }
    return median(std::move(costs));
}

#if defined(__x86_64__)

inline bool has_clflushopt() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 23 & 1);
}

// clflushopt lines leave in parallel; clflush waits for each, some 10 times slower.
__attribute__((target("clflushopt"))) inline void flush_lines_opt(const char* at, const char* end) {
    for (; at < end; at += 64) _mm_clflushopt(const_cast<char*>(at));
}

inline void flush_lines(const char* at, const char* end) {
    for (; at < end; at += 64) _mm_clflush(at);
}

// Pushes every line of the operands out of every cache of the machine.
inline void evict(const Spans& spans) {
    static const bool opt = has_clflushopt();
    for (const auto& [start, size] : spans) {
        const char* line = start - reinterpret_cast<std::uintptr_t>(start) % 64;
        opt ? flush_lines_opt(line, start + size) : flush_lines(line, start + size);
    }
    _mm_mfence();
}

#else

// No such instruction for user code everywhere: read twice the last level cache instead.
inline void evict(const Spans&) {
    static std::vector<char> sweep = [] {
        const long level3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
        return std::vector<char>(2 * static_cast<std::size_t>(level3 > 0 ? level3 : 32 << 20), 1);
    }();
    for (std::size_t i = 0; i < sweep.size(); i += 64) {
        ++*const_cast<volatile char*>(&sweep[i]);
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

#endif

// What is known of one kernel on one set of operands.
struct Pace {
    bool warm = false;
    std::int64_t calls = 1;  // in one warm sample
    double call_ns = 0;
};

// Times `call()`. `alive()` is called between samples, so that a slow measurement is not taken for
// a kernel that hangs.
template <class Call, class Alive>
class Timer {
  public:
    Timer(const Call& call, const Alive& alive, const Spans& spans, bool cold, double min_sample_ns)
        : call_(call), alive_(alive), spans_(spans), cold_(cold), min_sample_ns_(min_sample_ns) {}

    void warm_up(Pace& pace) {
        // Clocks ramp up and pages come in over some 100 ms; a loop that is stable sooner ends
        // sooner, and one call that takes longer than all this is as warm as it gets.
        constexpr double budget_ns = 0.5e9;
        constexpr int group = 5;
        const double start = now_ns();
        double before = 0;
        do {
            std::vector<double> times;
            do {
                times.push_back(sample(pace));
                settle(pace, times.back());
            } while (times.size() < group && now_ns() - start < budget_ns);
            pace.call_ns = median(std::move(times));
            if (std::abs(pace.call_ns - before) <= 0.02 * pace.call_ns) break;
            before = pace.call_ns;
        } while (now_ns() - start < budget_ns);
        pace.warm = true;
    }

    std::vector<double> samples(std::size_t count, Pace& pace) {
        settle(pace, pace.call_ns);
        // Another candidate may have run since: the caches are this one's again after one call.
        // Filling 32 MiB takes under 3 ms, so for calls of 0.1 s it is lost in the noise.
        if (!cold_ && pace.call_ns < 0.1e9) call_();
        std::vector<double> times(count);
        for (double& time : times) time = sample(pace);
        return times;
    }

  private:
    double sample(const Pace& pace) {
        alive_();
        const std::int64_t calls = cold_ ? 1 : pace.calls;
        if (cold_) evict(spans_);
        const double start = now_ns();
        for (std::int64_t i = 0; i < calls; ++i) call_();
        const double elapsed = now_ns() - start - cost_;
        return std::max(elapsed, 0.0) / static_cast<double>(calls);
    }

    // As many calls as a sample needs, at most 10 times more than before: one slow call says
    // little of the next, and one that reads 0 says nothing.
    void settle(Pace& pace, double call_ns) const {
        if (cold_) return;
        const double most = static_cast<double>(pace.calls) * 10;
        const double wanted = call_ns > 0 ? std::ceil(min_sample_ns_ / call_ns) : most;
        pace.calls = static_cast<std::int64_t>(std::clamp(wanted, 1.0, most));
    }

    const Call& call_;
    const Alive& alive_;
    const Spans& spans_;
    const bool cold_;
    const double min_sample_ns_;
    const double cost_ = clock_cost();
};

}  // namespace runner
