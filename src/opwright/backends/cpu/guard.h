// Turns a fault into a reply: signal handlers on their own stacks, and words for C++ exceptions.
#pragma once

#include <cxxabi.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <typeinfo>

#include "protocol.h"

namespace runner {

// The one conversation. Plain data, so that signal handlers may read it.
struct Line {
    int fd = -1;
    volatile std::uint64_t token = 0;
    volatile Stage stage = Stage::idle;
};
inline Line line;

// Async-signal-safe.
inline void reply(Reply& header, const void* payload = nullptr, std::size_t size = 0) {
    header.magic = kMagic;
    header.token = line.token;
    header.stage = line.stage;
    iovec parts[2] = {{&header, sizeof header}, {const_cast<void*>(payload), size}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = size ? 2 : 1;
    if (sendmsg(line.fd, &message, MSG_NOSIGNAL) < 0) {
        // Nobody listens, or the kernel closed our descriptors. SIGPIPE is how the client tells
        // this from an exit() that the kernel called.
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
        _exit(1);
    }
}

inline void reply_text(Kind kind, const std::string& text) {
    Reply header{};
    header.kind = kind;
    reply(header, text.data(), std::min<std::size_t>(text.size(), 4000));
}

struct Stack {
    std::uintptr_t low;
};
inline thread_local Stack stack{};

inline void on_fault(int number, siginfo_t* info, void* context) {
    static std::atomic_flag reported = ATOMIC_FLAG_INIT;
    if (reported.test_and_set()) {
        for (;;) pause();  // another thread is reporting; it ends the process
    }
    Reply header{};
    header.kind = Kind::signalled;
    header.signal = number;
    header.code = info->si_code;
    header.address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    header.stack_low = stack.low;
#if defined(__x86_64__)
    const auto* machine = static_cast<const ucontext_t*>(context);
    // Bit 1 of a page fault's error code: the access was a write.
    header.access = machine->uc_mcontext.gregs[REG_ERR] & 2 ? Access::write : Access::read;
    header.stack_pointer = static_cast<std::uint64_t>(machine->uc_mcontext.gregs[REG_RSP]);
#else
    (void)context;
#endif
    reply(header);
    _exit(1);
}

// A stack for the handler (a stack overflow leaves it none) and the end of the ordinary one.
inline void arm_thread() {
    constexpr std::size_t size = 64 << 10;  // a frame with AVX-512 and AMX state takes 11 KiB
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) {
        stack_t alternate{};
        alternate.ss_sp = memory;
        alternate.ss_size = size;
        sigaltstack(&alternate, nullptr);
    }
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        void* low = nullptr;
        std::size_t extent = 0;
        pthread_attr_getstack(&attributes, &low, &extent);
        stack.low = reinterpret_cast<std::uintptr_t>(low);
        pthread_attr_destroy(&attributes);
    }
}

// The name of the exception in flight and its what(); call inside a catch.
inline std::string describe_exception() {
    std::string name = "an exception";
    if (const std::type_info* type = abi::__cxa_current_exception_type()) {
        int status = 0;
        char* readable = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
        name = readable ? readable : type->name();
        std::free(readable);
    }
    try {
        throw;
    } catch (const std::exception& error) {
        return name + ": " + error.what();
    } catch (...) {
        return name;
    }
}

// An exception that cannot leave a thread of the kernel's own, a noexcept function, or a destructor.
[[noreturn]] inline void on_terminate() {
    if (std::current_exception()) {
        reply_text(Kind::thrown, describe_exception() + " (std::terminate was called)");
        _exit(1);
    }
    std::abort();
}

// Before every launch, as the kernel before may have put its own handlers in place.
inline void arm_process() {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigfillset(&action.sa_mask);
    sigset_t faults;
    sigemptyset(&faults);
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
        sigaction(number, &action, nullptr);
        sigaddset(&faults, number);
    }
    pthread_sigmask(SIG_UNBLOCK, &faults, nullptr);
    std::set_terminate(on_terminate);
}

}  // namespace runner
