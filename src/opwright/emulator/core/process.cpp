// The program's beginning, its end, and every way of ending badly.
#include <condition_variable>
#include <csignal>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "grid.h"

namespace opw::core {

void write_counts();
void report_left_over();
void number_apart();
void add_checks();
extern RunningLaunch* running_launch;

namespace {

std::atomic<bool> ended{false};

void finish() {
    if (ended.exchange(true)) return;
    for (Observer* o : observers.all) o->finished();
    write_counts();
    write_line("{\"end\":true}");
}

// A second stack per host thread: the handler must run when a device thread's stack is used up.
void give_signal_stack() {
    static constexpr size_t size = 1 << 16;
    stack_t stack{};
    stack.ss_sp = std::malloc(size);
    stack.ss_size = size;
    sigaltstack(&stack, nullptr);
}

uintptr_t program_counter(void* raw) {
#if defined(__x86_64__)
    return static_cast<uintptr_t>(static_cast<ucontext_t*>(raw)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
    return static_cast<uintptr_t>(static_cast<ucontext_t*>(raw)->uc_mcontext.pc);
#else
    (void)raw;
    return 0;
#endif
}

// Where a call that went to a wrong address came from.
uintptr_t caller_of(void* raw) {
#if defined(__x86_64__)
    return *reinterpret_cast<uintptr_t*>(static_cast<ucontext_t*>(raw)->uc_mcontext.gregs[REG_RSP]);
#elif defined(__aarch64__)
    return static_cast<uintptr_t>(static_cast<ucontext_t*>(raw)->uc_mcontext.regs[30]);
#else
    (void)raw;
    return 0;
#endif
}

void on_signal(int signal, siginfo_t* info, void* raw) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
    Thread* t = current_worker ? current_worker->current : nullptr;
    uintptr_t pc = program_counter(raw);
    const uintptr_t called_from = signal == SIGSEGV && pc == address ? caller_of(raw) : 0;
    if (in_program_text(pc)) ++pc;  // reports carry return addresses
    else if (in_program_text(called_from)) pc = called_from;
    else pc = t ? t->last_pc : 0;
    Report r;
    r.kind = signal == SIGABRT ? "abort" : "crash";
    r.pc = pc;
    r.thread = t ? describe(*t) : "host";
    const char* name = signal == SIGSEGV ? "segmentation fault" : signal == SIGBUS ? "bus error"
                       : signal == SIGFPE ? "arithmetic fault (a division by zero?)" : signal == SIGILL ? "illegal instruction" : "abort";
    r.message = std::string("the program ended with ") + name;
    if (t && signal == SIGSEGV && t->fiber && address - (static_cast<Fiber*>(t->fiber)->low - 4096) < 4096) {
        r.kind = "stack-overflow";
        r.message = "the thread's local memory is used up: recursion without end, or arrays of more than " +
                    std::to_string(stack_size >> 10) + " KiB";
    }
    report(r);
    finish();
    std::fflush(stdout);
    struct sigaction otherwise{};
    otherwise.sa_handler = SIG_DFL;
    sigaction(signal, &otherwise, nullptr);
    raise(signal);
}

const pthread_t main_thread = pthread_self();
std::atomic<uintptr_t> sampled_pc{0};
std::atomic<Thread*> sampled_thread{nullptr};
void on_sample(int, siginfo_t*, void* raw) {
    sampled_thread = !current_worker ? nullptr : current_worker->current ? current_worker->current : current_worker->latest;
    sampled_pc = program_counter(raw) + 1;
}

// When the program is to be ended; a program that serves many requests moves it.
struct Deadline {
    using Clock = std::chrono::steady_clock;
    std::mutex mutex;
    std::condition_variable moved;
    double limit = 0;  // seconds
    Clock::time_point time = Clock::time_point::max();

    void set(double seconds) {
        const std::lock_guard<std::mutex> hold(mutex);
        limit = seconds;
        time = seconds > 0 ? Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))
                           : Clock::time_point::max();
        moved.notify_all();
    }
    double wait() {
        std::unique_lock<std::mutex> hold(mutex);
        while (Clock::now() < time) {
            if (time == Clock::time_point::max()) moved.wait(hold);
            else moved.wait_until(hold, Clock::time_point(time));
        }
        return limit;
    }
};
// Never destroyed: the watcher waits on it until the very end.
Deadline& deadline() {
    static Deadline* const the = new Deadline;
    return *the;
}

// Ends a program that does not come back, saying where it was.
void watch() {
    const double seconds = deadline().wait();
    if (ended) return;
    pthread_t whom = main_thread;
    {
        const std::lock_guard<std::mutex> hold(all_workers.mutex);
        for (const Worker* w : all_workers.list) if (w->busy) whom = w->host_thread;
    }
    pthread_kill(whom, SIGUSR2);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    Report r;
    r.kind = "time-limit";
    char limit[32];
    std::snprintf(limit, sizeof limit, "%g", seconds);
    r.message = std::string("not finished after ") + limit + " s";
    if (RunningLaunch* launch = running_launch) {
        const uint64_t started = std::min<uint64_t>(launch->next, launch->blocks_run);
        r.kind = "livelock";
        r.message += ": " + launch->seen.kernel + " had finished " + std::to_string(launch->finished) + " of " +
                     std::to_string(launch->blocks_run) + " blocks";
        if (started < launch->blocks_run && launch->resident >= launch->most_resident) {
            r.message += "; " + std::to_string(launch->blocks_run - started) + " wait for room, because " + profile().name +
                         " holds " + std::to_string(launch->most_resident) + " at once: blocks must not wait for later ones";
        }
        r.file = launch->seen.file;
        r.line = launch->seen.line;
    }
    Thread* t = sampled_thread;
    const uintptr_t pc = t && !in_program_text(sampled_pc) ? t->last_pc : sampled_pc.load();
    if (in_program_text(pc)) {
        r.pc = pc;
        r.file.clear();
        r.line = 0;
    }
    r.thread = t ? describe(*t) : "host";
    report(r);
    finish();
    if (running_launch) flush_output(*running_launch);
    std::fflush(stdout);
    std::_Exit(124);
}

// Of what the program itself allocates; addresses that are only reserved cost nothing.
void limit_memory() {
    const char* text = std::getenv("OPWRIGHT_EMULATOR_MEMORY");
    if (!text) return;
    const rlimit data{std::strtoull(text, nullptr, 10), std::strtoull(text, nullptr, 10)};
    const rlimit core{0, 0};
    const rlimit file{rlim_t{1} << 28, rlim_t{1} << 28};  // its output goes to files
    setrlimit(RLIMIT_DATA, &data);
    setrlimit(RLIMIT_FSIZE, &file);
    setrlimit(RLIMIT_CORE, &core);
}

// The device is the parent's: what the child allocates or launches would be mixed with it.
void after_fork() {
    forked = true;
    number_apart();
    ended = true;
    hooks = AccessHooks();
}

struct Process {
    Process() {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pthread_atfork(nullptr, nullptr, after_fork);
        limit_memory();
        give_signal_stack();
        struct sigaction action{};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        for (const int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(s, &action, nullptr);
        action.sa_sigaction = on_sample;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
        sigaction(SIGUSR2, &action, nullptr);
        const char* checks = std::getenv("OPWRIGHT_EMULATOR_CHECKS");
        if (!checks || *checks != '0') add_checks();
        if (const char* text = std::getenv("OPWRIGHT_EMULATOR_TIME")) {
            const double seconds = std::strtod(text, nullptr);
            // The watcher takes no samples of itself.
            deadline().set(seconds);
            std::thread([] {
                sigset_t set;
                sigemptyset(&set);
                sigaddset(&set, SIGUSR2);
                pthread_sigmask(SIG_BLOCK, &set, nullptr);
                watch();
            }).detach();
        }
    }
    ~Process() {
        if (!forked) report_left_over();
        finish();
    }
};
// A library is ready before the program's own objects are made, and outlives them.
Process process;

}  // namespace

}  // namespace opw::core

void opw::limit_time(double seconds) { opw::core::deadline().set(seconds); }

namespace opw::core {

void prepare_host_thread() { give_signal_stack(); }

void add_observer(Observer* observer) {
    observers.all.push_back(observer);
}

}  // namespace opw::core
