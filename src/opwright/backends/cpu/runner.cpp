// The worker: a process that loads kernels and runs them for a client, and may die of it at any
// moment. Usage: runner FD, where FD is a SOCK_SEQPACKET socket (see protocol.h).
#include <dlfcn.h>
#include <fcntl.h>
#include <fenv.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "environment.h"
#include "guard.h"
#include "memory.h"
#include "opwright/call.h"
#include "pool.h"
#include "protocol.h"
#include "timing.h"

namespace runner {
namespace {

struct Library {
    void (*entry)(const opw::Call*);
    void (*omp_set_num_threads)(int);  // null where the kernel brought no OpenMP in
    double first_ns = -1;
};

struct Request {
    Command command;
    std::vector<std::uint64_t> words;
    std::string path;
    int inputs = -1, output = -1;
};

class Worker {
  public:
    void serve(const Request& request) {
        const Command& command = request.command;
        line.token = command.token;
        try {
            switch (command.op) {
                case Op::upload: return upload(request);
                case Op::free: return memory_.remove(command.buffers);
                case Op::launch: return launch(request);
                case Op::clock: return clock(request);
            }
        } catch (const std::exception& error) {
            line.stage = Stage::idle;
            reply_text(Kind::refused, error.what());
        }
    }

  private:
    Memory memory_;
    std::map<std::string, Library> libraries_;
    std::map<std::tuple<std::string, std::uint64_t, std::uint32_t, std::uint32_t>, Pace> paces_;
    // Never destroyed: exit() in a kernel runs destructors while the threads are at work.
    opw::host::Pool& pool_ = *new opw::host::Pool(arm_thread);
    const pid_t self_ = getpid();

    void upload(const Request& request) {
        const Operands& operands = memory_.add(
            request.command.buffers, static_cast<Placement>(request.command.placement),
            {request.words.begin(), request.words.end()}, request.inputs, request.output);
        std::vector<std::uint64_t> addresses;
        for (const char* pointer : operands.pointers) {
            addresses.push_back(reinterpret_cast<std::uintptr_t>(pointer));
        }
        Reply header{};
        header.kind = Kind::done;
        header.count = addresses.size();
        reply(header, addresses.data(), addresses.size() * sizeof addresses[0]);
    }

    // `path` and the function's name, a zero byte between them.
    Library& load(const std::string& path) {
        const auto found = libraries_.find(path);
        if (found != libraries_.end()) return found->second;
        const char* const name = path.c_str() + std::strlen(path.c_str()) + 1;
        line.stage = Stage::loading;
        // Start-up code of a library may change how this thread rounds or flush its subnormals to
        // zero (gcc links such code in with -ffast-math), and with it every kernel after.
        fenv_t before;
        fegetenv(&before);
        void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        fesetenv(&before);
        if (!handle) throw std::runtime_error(dlerror());
        Library library{};
        library.entry = reinterpret_cast<decltype(library.entry)>(dlsym(handle, name));
        if (!library.entry) throw std::runtime_error(std::string(path.c_str()) + " has no function " + name);
        library.omp_set_num_threads = reinterpret_cast<decltype(library.omp_set_num_threads)>(
            dlsym(handle, "omp_set_num_threads"));
        return libraries_.emplace(path, library).first->second;
    }

    // Runs `body(call)` the way kernels are run. False when it threw or left this thread computing
    // otherwise than before, which is then reported.
    template <class Body>
    bool run(const Request& request, const Operands& operands, const Library& library,
             const Body& body) {
        std::vector<void*> tensors(operands.pointers.begin(), operands.pointers.end());
        for (std::size_t i = 0; i + 1 < tensors.size() && i < 64; ++i) {
            if (request.command.absent >> i & 1) tensors[i] = nullptr;
        }
        static_assert(sizeof(opw::Value) == sizeof(std::uint64_t));
        std::vector<opw::Value> values(request.words.size());
        if (!values.empty()) {
            std::memcpy(values.data(), request.words.data(), values.size() * sizeof values[0]);
        }
        const opw::host::Grant grant(pool_, request.command.threads);
        const opw::Call call{tensors.data(), values.data(), &grant};
        if (library.omp_set_num_threads) {
            library.omp_set_num_threads(static_cast<int>(request.command.threads));
        }
        arm_process();
        fesetenv(FE_DFL_ENV);
        const opw::host::FloatEnvironment before;
        line.stage = Stage::running;
        std::string thrown;
        bool returned = false;
        try {
            body(call);
            returned = true;
        } catch (...) {
            thrown = opw::host::describe_exception();
        }
        if (getpid() != self_) _exit(0);  // the kernel forked; one of us answers
        if (!returned) {
            std::fflush(nullptr);
            reply_text(Kind::thrown, thrown);
        }
        const opw::host::FloatEnvironment after;
        if (returned && !(after == before)) {
            before.restore();
            std::fflush(nullptr);
            reply_text(Kind::environment, before.changed(after));
            returned = false;
        }
        line.stage = Stage::idle;
        return returned;
    }

    void launch(const Request& request) {
        const Operands& operands = memory_.get(request.command.buffers);
        Library& library = load(request.path);
        char* const output = operands.pointers.back();
        const std::size_t size = operands.sizes.back();
        const bool apart = output != operands.output && size;
        if (apart) std::memcpy(output, operands.output, size);
        // Its pages are here before the call, so that copying at the return is quick.
        std::vector<char> at_return(request.command.watch_ms ? size : 0);
        const bool returned = run(request, operands, library, [&](const opw::Call& call) {
            const double start = now_ns();
            library.entry(&call);
            if (!at_return.empty()) std::memcpy(at_return.data(), output, size);
            if (library.first_ns < 0) library.first_ns = now_ns() - start;
        });
        if (!returned) return;
        Reply header{};
        header.kind = Kind::done;
        if (request.command.watch_ms) {
            line.stage = Stage::watching;
            poll(nullptr, 0, static_cast<int>(request.command.watch_ms));
            line.stage = Stage::idle;
            for (std::size_t i = at_return.size(); i-- > 0;) {
                if (at_return[i] == output[i]) continue;
                header.kind = Kind::late;
                header.address = reinterpret_cast<std::uintptr_t>(output + i);
                ++header.count;
            }
            if (!at_return.empty()) std::memcpy(output, at_return.data(), size);
        }
        if (apart) std::memcpy(operands.output, output, size);
        std::fflush(nullptr);
        reply(header);
    }

    void clock(const Request& request) {
        const Command& command = request.command;
        const Operands& operands = memory_.get(command.buffers);
        Library& library = load(request.path);
        Pace& pace = paces_[{request.path, command.buffers, command.threads, command.cold}];
        Spans spans;
        for (std::size_t i = 0; i < operands.sizes.size(); ++i) {
            spans.emplace_back(operands.pointers[i], operands.sizes[i]);
        }
        std::vector<double> samples;
        const bool returned = run(request, operands, library, [&](const opw::Call& call) {
            if (library.first_ns < 0) {
                const double start = now_ns();
                library.entry(&call);
                library.first_ns = now_ns() - start;
            }
            double told = now_ns();
            const auto alive = [&told] {
                if (now_ns() - told < 0.1e9) return;
                Reply header{};
                header.kind = Kind::alive;
                reply(header);
                told = now_ns();
            };
            const auto once = [entry = library.entry, &call] { entry(&call); };
            Timer timer(once, alive, spans, command.cold != 0, command.min_sample_ns);
            if (!pace.warm) timer.warm_up(pace);
            samples = timer.samples(command.samples, pace);
        });
        if (!returned) return;
        std::fflush(nullptr);
        Reply header{};
        header.kind = Kind::done;
        header.count = samples.size();
        header.calls = command.cold ? 1 : static_cast<std::uint64_t>(pace.calls);
        header.first_ns = library.first_ns;
        reply(header, samples.data(), samples.size() * sizeof samples[0]);
    }
};

// False at the end of the conversation.
bool receive(Request& request) {
    static std::vector<char> buffer(64 << 10);
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
    iovec part{buffer.data(), buffer.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t size;
    do {
        size = recvmsg(line.fd, &message, MSG_CMSG_CLOEXEC);
    } while (size < 0 && errno == EINTR);
    if (size < static_cast<ssize_t>(sizeof(Command))) return false;
    std::memcpy(&request.command, buffer.data(), sizeof(Command));
    if (request.command.magic != kMagic) return false;
    const std::size_t words = request.command.count * sizeof(std::uint64_t);
    if (static_cast<std::size_t>(size) < sizeof(Command) + words) return false;
    request.words.resize(request.command.count);
    if (words) std::memcpy(request.words.data(), buffer.data() + sizeof(Command), words);
    request.path.assign(buffer.data() + sizeof(Command) + words, buffer.data() + size);
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(2 * sizeof(int))) {
        int descriptors[2];
        std::memcpy(descriptors, CMSG_DATA(header), sizeof descriptors);
        request.inputs = descriptors[0];
        request.output = descriptors[1];
    }
    return true;
}

// Linux gives AMX's tile registers to processes that ask; where it has none, it says no. The request
// is lost at exec, so the client's own does not count here.
void request_amx() {
#if defined(__x86_64__)
    constexpr long request_permission = 0x1023, tile_data = 18;
    syscall(SYS_arch_prctl, request_permission, tile_data);
#endif
}

// Ends this process, and any that a kernel started, when the client is gone while a kernel runs.
// PR_SET_PDEATHSIG would do so already when the client's thread that started us ends.
void watch_client(int fd, pid_t client) {
    for (;;) {
        // The socket closes with the client, unless a process that it forked still holds it; then
        // we have another parent within a second.
        pollfd socket{fd, 0, 0};
        const int ready = poll(&socket, 1, 1000);
        if ((ready > 0 && socket.revents & POLLHUP) || getppid() != client) kill(0, SIGKILL);
        if (ready > 0) poll(nullptr, 0, 1000);  // a kernel closed the descriptor
    }
}

}  // namespace
}  // namespace runner

int main(int argc, char** argv) {
    using namespace runner;
    if (argc != 2) return 2;
    const pid_t client = getppid();
    setpgid(0, 0);  // a group of its own, with all that kernels start, to be ended together
    // A number far from those that a stray write or close in a kernel would hit.
    const int given = std::atoi(argv[1]);
    line.fd = fcntl(given, F_DUPFD_CLOEXEC, 500);
    if (line.fd < 0) return 2;
    close(given);
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    // Where memory runs out, this process goes and not its client.
    if (FILE* score = std::fopen("/proc/self/oom_score_adj", "w")) {
        std::fputs("1000", score);
        std::fclose(score);
    }
    // What a kernel printed before it crashed is out.
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    request_amx();
    arm_thread();
    arm_process();
    std::thread(watch_client, line.fd, client).detach();
    Worker worker;
    for (;;) {
        Request request;
        if (!receive(request)) _exit(0);
        worker.serve(request);
        for (const int fd : {request.inputs, request.output}) {
            if (fd >= 0) close(fd);
        }
    }
}
