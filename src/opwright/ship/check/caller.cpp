// Calls a shipped library the way a C program does, in a process of its own: whatever the library does to
// it is seen from outside. Arguments: MODE LIBRARY PREFIX CALLS RESULTS [NUMBER].
//
// Every operand lies at the edge of a page that cannot be accessed, inputs on pages that cannot be
// written. Results are written one by one, so that after a crash it is known in which call it was.
#include <dlfcn.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

struct Tensor {  // DLTensor
    void* data;
    std::int32_t device_type, device_id;
    std::int32_t ndim;
    std::uint8_t code, bits;
    std::uint16_t lanes;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
};

struct Context {
    std::size_t struct_size;
    std::int32_t threads;
    void (*parallel_for)(void*, std::int64_t, void (*)(void*, std::int64_t), void*);
    void* pool;
};

struct Allocator {
    void* (*allocate)(void*, std::size_t, std::size_t);
    void (*release)(void*, void*, std::size_t, std::size_t);
    void* self;
};

[[noreturn]] void die(const std::string& text) {
    std::fprintf(stderr, "%s\n", text.c_str());
    std::_Exit(70);
}

class Reader {
  public:
    explicit Reader(const std::string& path) : file_(path, std::ios::binary) {
        if (!file_) die("cannot read " + path);
    }
    template <class Number> Number number() {
        Number value{};
        file_.read(reinterpret_cast<char*>(&value), sizeof value);
        if (!file_) die("the file of calls ends early");
        return value;
    }
    std::string bytes(std::uint64_t size) {
        std::string text(size, '\0');
        file_.read(text.data(), static_cast<std::streamsize>(size));
        if (!file_) die("the file of calls ends early");
        return text;
    }

  private:
    std::ifstream file_;
};

constexpr unsigned char canary = 0xA5, poison = 0xFF;
constexpr std::uint8_t at_end = 0, at_begin = 1, aligned = 2;

// Memory for one operand between two inaccessible pages.
class Guarded {
  public:
    Guarded(std::uint64_t bytes, std::uint8_t placement) : bytes_(bytes) {
        const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        inside_ = (bytes + page) / page * page;
        mapped_ = inside_ + 2 * page;
        void* start = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start == MAP_FAILED) die("no memory for operands");
        start_ = static_cast<char*>(start);
        first_ = start_ + page;
        if (mprotect(first_, inside_, PROT_READ | PROT_WRITE) != 0) die("mprotect failed");
        std::memset(first_, canary, inside_);
        data_ = placement == at_end ? first_ + (inside_ - bytes) : first_;
    }
    ~Guarded() { munmap(start_, mapped_); }
    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;

    char* data() const { return data_; }
    void protect() { mprotect(first_, inside_, PROT_READ); }
    bool intact() const {
        for (const char* p = first_; p < first_ + inside_; ++p) {
            if ((p < data_ || p >= data_ + bytes_) && static_cast<unsigned char>(*p) != canary) {
                return false;
            }
        }
        return true;
    }

  private:
    std::uint64_t bytes_;
    std::size_t inside_, mapped_;
    char *start_, *first_, *data_;
};

struct Operand {
    Tensor tensor{};
    std::vector<std::int64_t> shape, strides;
    std::uint64_t bytes = 0, offset = 0;
    std::uint8_t output = 0, placement = 0;
    std::string content;
    bool given;
};

struct Call {
    std::string function, path, attributes;
    std::int32_t threads;
    std::vector<Operand> operands;
};

std::vector<Call> read_calls(const std::string& path) {
    Reader in(path);
    std::vector<Call> calls(in.number<std::uint32_t>());
    for (Call& call : calls) {
        call.function = in.bytes(in.number<std::uint32_t>());
        call.path = in.bytes(in.number<std::uint32_t>());
        call.attributes = in.bytes(in.number<std::uint32_t>());
        call.threads = in.number<std::int32_t>();
        call.operands.resize(in.number<std::uint32_t>());
        for (Operand& operand : call.operands) {
            operand.given = in.number<std::uint8_t>() != 0;
            if (!operand.given) continue;
            operand.tensor.device_type = 1;
            operand.tensor.code = in.number<std::uint8_t>();
            operand.tensor.bits = in.number<std::uint8_t>();
            operand.tensor.lanes = 1;
            operand.tensor.ndim = in.number<std::int32_t>();
            for (auto* list : {&operand.shape, &operand.strides}) {
                for (int d = 0; d < operand.tensor.ndim; ++d) list->push_back(in.number<std::int64_t>());
            }
            operand.output = in.number<std::uint8_t>();
            operand.placement = in.number<std::uint8_t>();
            operand.bytes = in.number<std::uint64_t>();
            operand.offset = in.number<std::uint64_t>();
            if (!operand.output) operand.content = in.bytes(operand.bytes);
        }
    }
    return calls;
}

class Library {
  public:
    Library(const std::string& path, std::string prefix) : prefix_(std::move(prefix)) {
        handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!handle_) die(std::string("dlopen: ") + dlerror());
    }
    ~Library() { dlclose(handle_); }
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    void* find(const std::string& name) const {
        void* found = dlsym(handle_, name.c_str());
        if (!found) die("it exports no " + name);
        return found;
    }
    template <class Function> Function own(const char* name) const {
        return reinterpret_cast<Function>(find(prefix_ + "_" + name));
    }

  private:
    void* handle_;
    std::string prefix_;
};

constexpr std::size_t most = 16;

template <std::size_t> using Argument = const Tensor*;

template <std::size_t... Index>
int invoke(void* function, const Tensor* const* tensors, const void* attributes, const Context* context,
           std::index_sequence<Index...>) {
    using Function = int (*)(Argument<Index>..., const void*, const Context*);
    return reinterpret_cast<Function>(function)(tensors[Index]..., attributes, context);
}

template <std::size_t Count = 1>
int invoke(std::size_t count, void* function, const Tensor* const* tensors, const void* attributes,
           const Context* context) {
    if (count == Count) {
        return invoke(function, tensors, attributes, context, std::make_index_sequence<Count>());
    }
    if constexpr (Count < most) {
        return invoke<Count + 1>(count, function, tensors, attributes, context);
    } else {
        die("an operator with more than 16 tensors");
    }
}

struct Result {
    int status;
    std::string message, variant, output;
    bool intact;
};

Result run(const Library& library, const Call& call, const Context* with = nullptr) {
    const auto last_error = library.own<const char* (*)()>("last_error");
    if (!call.path.empty()) {
        const int status = library.own<int (*)(const char*)>("force")(call.path.c_str());
        if (status) return Result{status, last_error(), "", "", true};
    }
    std::vector<std::unique_ptr<Guarded>> memory;
    std::vector<Tensor> tensors;
    std::vector<const Tensor*> pointers;
    for (const Operand& operand : call.operands) {
        memory.push_back(std::make_unique<Guarded>(operand.bytes, operand.placement));
        char* data = memory.back()->data();
        if (operand.output) {
            std::memset(data, poison, operand.bytes);
        } else {
            std::memcpy(data, operand.content.data(), operand.bytes);
            memory.back()->protect();
        }
        Tensor tensor = operand.tensor;
        tensor.data = data;
        tensor.byte_offset = operand.offset;
        tensor.shape = const_cast<std::int64_t*>(operand.shape.data());
        tensor.strides = const_cast<std::int64_t*>(operand.strides.data());
        tensors.push_back(tensor);
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        pointers.push_back(call.operands[i].given ? &tensors[i] : nullptr);
    }
    Context context{sizeof(Context), call.threads, nullptr, nullptr};
    if (with) context = *with;
    const int status = invoke(pointers.size(), library.find(call.function), pointers.data(),
                              call.attributes.empty() ? nullptr : call.attributes.data(), &context);
    const char* variant = library.own<const char* (*)()>("last_variant")();
    const Guarded& out = *memory.back();
    return Result{status, status ? last_error() : "", variant && !status ? variant : "",
                  std::string(out.data(), call.operands.back().bytes), out.intact()};
}

class Writer {
  public:
    explicit Writer(const std::string& path) : file_(path, std::ios::binary) {}
    void result(const Result& result) {
        number<std::int32_t>(result.status);
        text(result.message);
        text(result.variant);
        number<std::uint8_t>(result.intact);
        number<std::uint64_t>(result.output.size());
        file_ << result.output;
        file_.flush();
        if (!file_) die("results cannot be written");
    }

  private:
    template <class Number> void number(Number value) {
        file_.write(reinterpret_cast<const char*>(&value), sizeof value);
    }
    void text(const std::string& text) {
        number<std::uint32_t>(static_cast<std::uint32_t>(text.size()));
        file_ << text;
    }
    std::ofstream file_;
};

// What this process holds, by /proc: kilobytes resident, mappings, threads.
struct Held {
    long kilobytes = 0, mappings = 0, threads = 0;
    Held() {
        malloc_trim(0);  // what was freed is not held, whatever size the last call had
        std::ifstream status("/proc/self/status"), maps("/proc/self/maps");
        // Counted page by page; VmRSS in status is late by hundreds of pages.
        std::ifstream rollup("/proc/self/smaps_rollup");
        for (std::string line; std::getline(rollup, line);) {
            if (line.rfind("Rss:", 0) == 0) kilobytes = std::atol(line.c_str() + 4);
        }
        for (std::string line; std::getline(status, line);) {
            if (line.rfind("Threads:", 0) == 0) threads = std::atol(line.c_str() + 8);
        }
        for (std::string line; std::getline(maps, line);) ++mappings;
    }
};

bool same(const Result& a, const Result& b) { return a.status == b.status && a.output == b.output && b.intact; }

int fail(const char* what, const Call& call) {
    std::printf("%s: %s", what, call.function.c_str());
    return 1;
}

int reload(const std::string& path, const std::string& prefix, const std::vector<Call>& calls, int times) {
    Held early;
    for (int i = 0; i < times; ++i) {
        {
            const Library library(path, prefix);
            const Result result = run(library, calls[static_cast<std::size_t>(i) % calls.size()]);
            if (result.status) {
                std::printf("call %d: %s", i, result.message.c_str());
                return 1;
            }
        }
        if (i == times / 10) early = Held();
    }
    const Held late;
    void* still = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    std::printf("%ld kB, %ld mappings and %ld threads more after %d of %d times", late.kilobytes - early.kilobytes,
                late.mappings - early.mappings, late.threads - early.threads, times - times / 10, times);
    if (still) std::printf("; it stays loaded after dlclose()");
    // 100 bytes a time would be found; what the C library keeps for itself does not grow.
    return still || late.kilobytes - early.kilobytes > times / 10 + 64 || late.mappings - early.mappings > 8 ||
           late.threads != early.threads;
}

int from_threads(const Library& library, const std::vector<Call>& calls, int count) {
    std::vector<Result> expected;
    for (const Call& call : calls) expected.push_back(run(library, call));
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < count; ++t) {
        threads.emplace_back([&, t] {
            for (std::size_t i = 0; i < 3 * calls.size(); ++i) {
                const std::size_t c = (i + static_cast<std::size_t>(t)) % calls.size();
                if (!same(expected[c], run(library, calls[c]))) ++wrong;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    std::printf("%d of %zu calls from %d threads at once differ from the same call alone", wrong.load(),
                3 * calls.size() * static_cast<std::size_t>(count), count);
    return wrong.load() != 0;
}

int after_fork(const Library& library, const std::vector<Call>& calls) {
    std::vector<Result> expected;
    for (const Call& call : calls) expected.push_back(run(library, call));
    const pid_t child = fork();
    if (child == 0) {
        for (std::size_t c = 0; c < calls.size(); ++c) {
            if (!same(expected[c], run(library, calls[c]))) std::_Exit(1);
        }
        std::_Exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    for (std::size_t c = 0; c < calls.size(); ++c) {
        if (!same(expected[c], run(library, calls[c]))) return fail("differs in the parent after fork", calls[c]);
    }
    if (status != 0) std::printf("calls in a child of fork() differ or fail (status %d)", status);
    else std::printf("parent and child of fork() give the same as before it");
    return status != 0;
}

struct Counted {
    std::atomic<long> given{0}, returned{0}, misaligned{0};
};

int callers_own(const std::string& path, const std::string& prefix, const std::vector<Call>& calls) {
    Counted counted;
    std::atomic<long> jobs{0};
    long wrong = 0;
    {
        const Library library(path, prefix);
        std::vector<Result> expected;
        for (const Call& call : calls) expected.push_back(run(library, call));
        const Allocator allocator{
            [](void* self, std::size_t bytes, std::size_t alignment) -> void* {
                void* memory = nullptr;
                if (posix_memalign(&memory, alignment, bytes) != 0) return nullptr;
                static_cast<Counted*>(self)->given++;
                return memory;
            },
            [](void* self, void* memory, std::size_t, std::size_t alignment) {
                if (reinterpret_cast<std::uintptr_t>(memory) % alignment != 0) {
                    static_cast<Counted*>(self)->misaligned++;
                }
                static_cast<Counted*>(self)->returned++;
                std::free(memory);
            },
            &counted};
        library.own<int (*)(const Allocator*)>("set_allocator")(&allocator);
        Context context{sizeof(Context), 3,
                        [](void* pool, std::int64_t tasks, void (*task)(void*, std::int64_t), void* argument) {
                            ++*static_cast<std::atomic<long>*>(pool);
                            std::thread other([=] {
                                for (std::int64_t i = 1; i < tasks; i += 2) task(argument, i);
                            });
                            for (std::int64_t i = 0; i < tasks; i += 2) task(argument, i);
                            other.join();
                        },
                        &jobs};
        for (std::size_t c = 0; c < calls.size(); ++c) {
            std::thread([&] { wrong += !same(expected[c], run(library, calls[c], &context)); }).join();
            wrong += !same(expected[c], run(library, calls[c], &context));
        }
    }
    std::printf("%ld calls with the caller's threads and memory differ; %ld jobs on the caller's threads; "
                "%ld blocks taken, %ld given back",
                wrong, jobs.load(), counted.given.load(), counted.returned.load());
    return wrong != 0 || counted.given != counted.returned || counted.misaligned != 0 || counted.given == 0;
}

// What the library says about itself: active path, then a line for each variant.
int describe(const Library& library) {
    const char* active = library.own<const char* (*)()>("active")();
    std::printf("%s\n%s", active ? active : library.own<const char* (*)()>("last_error")(),
                library.own<const char* (*)()>("variants")());
    return active == nullptr;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 6) die("usage: caller MODE LIBRARY PREFIX CALLS RESULTS [NUMBER]");
    const std::string mode = argv[1], path = argv[2], prefix = argv[3];
    const int number = argc > 6 ? std::atoi(argv[6]) : 1;
    if (mode == "describe") return describe(Library(path, prefix));
    if (mode == "usable") {
        const Library library(path, prefix);
        const int usable = library.own<int (*)(const char*)>("usable")(argv[4]);
        if (!usable) std::printf("%s", library.own<const char* (*)()>("last_error")());
        return usable ? 0 : 1;
    }
    const std::vector<Call> calls = read_calls(argv[4]);
    if (mode == "reload") return reload(path, prefix, calls, number);
    if (mode == "own") return callers_own(path, prefix, calls);
    const Library library(path, prefix);
    if (mode == "threads") return from_threads(library, calls, number);
    if (mode == "fork") return after_fork(library, calls);
    if (mode != "batch") die("no such mode: " + mode);
    Writer out(argv[5]);
    for (const Call& call : calls) out.result(run(library, call));
    return 0;
}
