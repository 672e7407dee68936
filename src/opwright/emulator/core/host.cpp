// The run-time interface as the host sees it.
#include <chrono>
#include <cstring>
#include <new>
#include <set>

#include "grid.h"
#include "streams.h"

namespace opw::core {

// Never destroyed: the program may use the device until its very end.
Streams& streams = *new Streams;

namespace {

struct Host {
    cudaError_t last = cudaSuccess;
    // The launch that failed and whose error nobody asked for yet.
    bool unread = false;
    std::string unread_file, unread_message;
    int unread_line = 0;
    // The call in progress, from the macros of the header.
    std::string file, arguments;
    int line = 0;
    size_t used = 0;
    std::map<std::string, size_t> dynamic_limit;  // by kernel, where the program raised it
    std::map<std::string, size_t> declared_shared;  // by kernel, as seen in a run
    std::set<void*> events;
    std::set<cudaStream_t> streams;
    uint64_t launches = 0;
};
Host& host() {
    static Host* const all = new Host;
    return *all;
}

cudaError_t fail(cudaError_t error) {
    if (error != cudaSuccess) host().last = error;
    return error;
}

// Argument `index` of a call as written.
std::string argument(const std::string& arguments, int index) {
    int depth = 0, at = 0;
    std::string text;
    for (const char c : arguments) {
        if (c == '(' || c == '[' || c == '<' || c == '{') ++depth;
        if (c == ')' || c == ']' || c == '>' || c == '}') --depth;
        if (c == ',' && depth == 0) {
            if (at++ == index) break;
            text.clear();
        } else {
            text += c;
        }
    }
    return text;
}

// "(void**)&d_a, n * sizeof(float)" names d_a.
std::string first_argument(const std::string& arguments) {
    std::string name = argument(arguments, 0);
    for (const char* cast : {"(void **)", "(void**)", "(void* *)", "reinterpret_cast<void**>", "reinterpret_cast<void **>"}) {
        const size_t at = name.find(cast);
        if (at != std::string::npos) name.erase(at, std::strlen(cast));
    }
    while (!name.empty() && (name.front() == ' ' || name.front() == '&' || name.front() == '(')) name.erase(0, 1);
    while (!name.empty() && (name.back() == ' ' || (name.back() == ')' && name.find('(') == std::string::npos))) name.pop_back();
    return name;
}

// The function's own name: no namespace, no template arguments.
std::string plain_name(const std::string& kernel) {
    std::string name = kernel.substr(0, kernel.find('<'));
    const size_t colon = name.rfind(':');
    if (colon != std::string::npos) name.erase(0, colon + 1);
    name.erase(std::remove_if(name.begin(), name.end(), [](char c) { return c == ' ' || c == '(' || c == ')' || c == '&' || c == '*'; }),
               name.end());
    return name;
}

void host_report(const char* kind, const std::string& message) {
    Report r;
    r.kind = kind;
    r.file = host().file;
    r.line = host().line;
    r.thread = "host";
    r.message = message;
    report(r);
}

// CUDA's own rule: a child of fork() cannot use the device.
cudaError_t refuse_after_fork() {
    host_report("unsupported", "a process made by fork() cannot use the device: use threads, or start a program");
    return fail(cudaErrorInitializationError);
}

std::string mib(size_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
    return text;
}
// Memory that the device itself would have had is a fault of this host, not of the program.
cudaError_t no_room(size_t size) {
    const size_t used = host().used, device = profile().size("memory_bytes", ~size_t{0});
    if (used <= device && size <= device - used) {
        host_report("host-memory-limit",
                    mib(size) + " of device memory refused, with " + mib(used) + " in use: here the device has " + mib(limits().memory) +
                        ", a tenth of the host memory that the program may take (" + mib(limits().host_memory) +
                        "), as the checks need the rest; use smaller sizes, or opwright emulate --memory with more MiB");
    }
    return fail(cudaErrorMemoryAllocation);
}

cudaError_t allocate(void** pointer, size_t size, Allocation::Kind kind, size_t lead = 0) {
    Host& h = host();
    if (forked) return refuse_after_fork();
    if (!pointer) return fail(cudaErrorInvalidValue);
    if (size == 0) {
        *pointer = nullptr;
        return cudaSuccess;
    }
    if (size > limits().memory - h.used) return no_room(size);
    Allocation* made = heap.allocate(size, lead);
    if (!made) return no_room(size);
    h.used += size;
    made->kind = kind;
    made->runtime = true;
    made->name = first_argument(h.arguments);
    if (made->name.empty()) made->name = "allocation";
    made->file = h.file;
    made->line = h.line;
    *pointer = reinterpret_cast<void*>(made->low);
    for (Observer* o : observers.all) o->allocated(*made);
    return cudaSuccess;
}

cudaError_t release(void* pointer) {
    Host& h = host();
    if (forked) return refuse_after_fork();
    if (!pointer) return cudaSuccess;
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    Allocation* found = heap.contains(address) ? heap.at(address) : nullptr;
    if (!found || found->low != address) {
        host_report("invalid-free", found ? "free of an address inside " + found->name + ", not of its start"
                                          : "free of " + first_argument(h.arguments) + ", which is no device allocation");
        return fail(cudaErrorInvalidValue);
    }
    if (found->freed) {
        host_report("double-free", found->name + " was already freed at line " + std::to_string(found->free_line));
        return fail(cudaErrorInvalidValue);
    }
    found->free_file = h.file;
    found->free_line = h.line;
    h.used -= found->size();
    for (Observer* o : observers.all) o->freed(*found);
    heap.release(*found);
    return cudaSuccess;
}

Allocation* device_memory(uintptr_t address) {
    if (heap.contains(address)) return heap.at(address);
    return variables.at(address);
}
bool is_device(uintptr_t address) { return heap.contains(address) || variables.at(address); }

// Whether [address, address + size) is memory of the device; says so when it is not.
bool check_range(uintptr_t address, size_t size, const char* what) {
    Allocation* a = device_memory(address);
    if (a && !a->freed && address + size <= a->high) return true;
    std::string message = std::string(what) + " of " + std::to_string(size) + " bytes ";
    const char* kind = "invalid-copy";
    if (!a) {
        message += "at an address that is no device memory";
    } else if (a->freed) {
        kind = "use-after-free";
        message += "in " + a->name + ", which was freed at line " + std::to_string(a->free_line);
    } else {
        kind = "out-of-bounds";
        message += "reaches " + std::to_string(address + size - a->high) + " bytes past the end of " + a->name + " (" +
                   std::to_string(a->size()) + " bytes)";
    }
    host_report(kind, message);
    return false;
}

// Memory that a copy or memset of the host touches, as part of the work in its stream.
void touch(uintptr_t address, size_t size, unsigned flags, const Operation& operation) {
    Allocation* const a = device_memory(address);
    if (!a) return;
    Grid as;
    as.operation = operation;
    as.kernel = flags & is_write ? "a write by the host's call" : "a copy";
    as.file = host().file;
    as.line = host().line;
    for (Observer* o : observers.all) o->copied(*a, address, size, flags, as);
}

// The host waits for its end, unless it is `async` and can go on while the device works.
cudaError_t copy(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t stream = nullptr, bool async = false) {
    if (forked) return refuse_after_fork();
    if (size == 0) return cudaSuccess;
    variables.sort();
    const uintptr_t t = reinterpret_cast<uintptr_t>(to), f = reinterpret_cast<uintptr_t>(from);
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return fail(cudaErrorInvalidMemcpyDirection);
    if (!to || !from) {
        host_report("invalid-copy", std::string("copy with a null pointer as ") + (to ? "source" : "destination"));
        return fail(cudaErrorInvalidValue);
    }
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice || (kind == cudaMemcpyDefault && is_device(t));
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice || (kind == cudaMemcpyDefault && is_device(f));
    const auto host_side = [](uintptr_t address) {
        Allocation* a = device_memory(address);
        return !a || a->host_may_touch();
    };
    if (to_device ? !check_range(t, size, "copy") : false) return fail(cudaErrorInvalidValue);
    if (from_device ? !check_range(f, size, "copy") : false) return fail(cudaErrorInvalidValue);
    if ((!to_device && !host_side(t)) || (!from_device && !host_side(f))) {
        host_report("invalid-copy", std::string("the ") + (!to_device && !host_side(t) ? "destination" : "source") +
                                        " is device memory, but the direction says host");
        return fail(cudaErrorInvalidValue);
    }
    // Into pageable memory even an asynchronous copy returns when it is done.
    const bool waited = !(to_device && from_device) && !(async && (to_device || device_memory(t)));
    const Operation operation = streams.enqueue(stream, waited);
    touch(f, size, is_read, operation);
    touch(t, size, is_write, operation);
    std::memmove(to, from, size);
    if (Allocation* a = device_memory(t)) {
        Allocation* source = device_memory(f);
        for (Observer* o : observers.all) {
            if (source) o->device_copied(*a, t, *source, f, size);
            else o->host_wrote(*a, t, size);
        }
    }
    return cudaSuccess;
}

cudaError_t fill(void* pointer, int value, size_t size, cudaStream_t stream = nullptr) {
    if (forked) return refuse_after_fork();
    if (size == 0) return cudaSuccess;
    variables.sort();
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    if (!check_range(address, size, "memset")) return fail(cudaErrorInvalidValue);
    touch(address, size, is_write, streams.enqueue(stream));
    std::memset(pointer, value, size);
    for (Observer* o : observers.all) o->host_wrote(*device_memory(address), address, size);
    return cudaSuccess;
}

int blocks_per_sm(size_t threads, size_t shared) {
    if (threads == 0 || threads > limits().threads_per_block) return 0;
    const size_t warps = (threads + warp_size - 1) / warp_size;
    size_t blocks = std::min(limits().blocks_per_sm, std::min(limits().threads_per_sm / (warps * warp_size), limits().warps_per_sm / warps));
    const size_t needs = shared ? shared + limits().shared_reserved : 0;
    if (needs) blocks = std::min(blocks, limits().shared_per_sm / needs);
    return static_cast<int>(blocks);
}

std::string text(dim3 d) { return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")"; }

// Why a launch is refused, in words; empty when it may run.
std::string refusal(const LaunchRequest& q, const std::string& kernel, cudaError_t& error) {
    const Limits& l = limits();
    const auto device = [](const char* limit) {
        return (profile().numbers.count(limit) ? profile().name : "the emulator (the limit of " + profile().name + " is unknown)") + " allows ";
    };
    error = cudaErrorInvalidConfiguration;
    const size_t threads = size_t{q.block.x} * q.block.y * q.block.z;
    if (!threads || !q.grid.x || !q.grid.y || !q.grid.z) return "a dimension is 0: grid " + text(q.grid) + ", block " + text(q.block);
    if (threads > l.threads_per_block) {
        return std::to_string(threads) + " threads in a block; " + device("threads_per_block") + std::to_string(l.threads_per_block);
    }
    const struct { const char *name, *key; size_t asked, limit; } sizes[] = {
        {"block.x", "block_x", q.block.x, l.block_x}, {"block.y", "block_y", q.block.y, l.block_y}, {"block.z", "block_z", q.block.z, l.block_z},
        {"grid.x", "grid_x", q.grid.x, l.grid_x},    {"grid.y", "grid_y", q.grid.y, l.grid_y},    {"grid.z", "grid_z", q.grid.z, l.grid_z}};
    for (const auto& s : sizes) {
        if (s.asked > s.limit) return std::string(s.name) + " = " + std::to_string(s.asked) + "; " + device(s.key) + std::to_string(s.limit);
    }
    size_t allowed = l.shared_per_block;
    const auto raised = host().dynamic_limit.find(plain_name(kernel));
    if (raised != host().dynamic_limit.end()) allowed = std::max(allowed, raised->second);
    if (q.shared > allowed) {
        error = cudaErrorInvalidValue;
        return std::to_string(q.shared) + " bytes of dynamic shared memory; " + device("shared_per_block") + std::to_string(l.shared_per_block) +
               (l.shared_per_block_optin > l.shared_per_block
                    ? ", and up to " + std::to_string(l.shared_per_block_optin) +
                          " after cudaFuncSetAttribute(..., cudaFuncAttributeMaxDynamicSharedMemorySize, ...)"
                    : "");
    }
    if (q.cooperative) {
        const uint64_t most = static_cast<uint64_t>(blocks_per_sm(threads, q.shared)) * l.sms;
        const uint64_t blocks = uint64_t{q.grid.x} * q.grid.y * q.grid.z;
        if (blocks > most) {
            error = cudaErrorCooperativeLaunchTooLarge;
            return std::to_string(blocks) + " blocks in a cooperative launch; " + profile().name + " can hold " + std::to_string(most) + " at once";
        }
    }
    error = cudaSuccess;
    return "";
}

const struct { cudaError_t error; const char *name, *text; } error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {cudaErrorInvalidDevicePointer, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorCooperativeLaunchTooLarge, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

struct Event { std::chrono::steady_clock::time_point time; bool recorded = false; Clock clock; };
Event* event_of(cudaEvent_t e) { return reinterpret_cast<Event*>(e); }

}  // namespace

RunningLaunch* running_launch = nullptr;

void report_left_over() {
    Host& h = host();
    if (h.unread) {
        Report r;
        r.kind = "unchecked-launch-error";
        r.file = h.unread_file;
        r.line = h.unread_line;
        r.thread = "host";
        r.message = "this launch failed (" + h.unread_message + ") and the program never asked: call cudaGetLastError() after it";
        report(r);
    }
    for (const Allocation& a : heap.all()) {
        if (!a.runtime || a.freed || !a.low) continue;
        Report r;
        r.kind = "leak";
        r.file = a.file;
        r.line = a.line;
        r.thread = "host";
        r.message = a.name + " (" + std::to_string(a.size()) + " bytes) was never freed";
        report(r);
    }
}

}  // namespace opw::core

namespace opw {

using namespace core;

Variable::Variable(const volatile void* address, size_t size, const volatile void* gap, size_t gap_size, const char* name,
                   VariableKind kind, const char* file, int line) {
    Allocation a;
    a.low = reinterpret_cast<uintptr_t>(address);
    a.high = a.low + size;
    a.kind = kind == VariableKind::constant ? Allocation::Kind::constant_variable
             : kind == VariableKind::managed ? Allocation::Kind::managed
                                             : Allocation::Kind::variable;
    a.name = name;
    a.file = file;
    a.line = line;
    // From the variable's very end: the gap itself begins where its alignment allows.
    if (gap) variables.add_gap(a.high, reinterpret_cast<uintptr_t>(gap) + gap_size);
    Allocation* added = variables.add(a);
    for (Observer* o : observers.all) {
        o->allocated(*added);
        o->host_wrote(*added, added->low, added->size());  // zero or its initialiser
    }
}

void note_call(const char* file, int line, const char* arguments) {
    if (current_worker) return;
    host().file = file;
    host().line = line;
    host().arguments = arguments;
}

cudaError_t place(void** pointer, size_t size, size_t lead, const char* name) {
    host().arguments = name;
    return allocate(pointer, size, Allocation::Kind::device, lead);
}

cudaError_t check_stream(cudaStream_t stream) {
    if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread || host().streams.count(stream)) return cudaSuccess;
    host_report("invalid-stream", "this stream was destroyed, or never created");
    return fail(cudaErrorInvalidResourceHandle);
}

cudaError_t launch(const LaunchRequest& given) {
    Host& h = host();
    LaunchRequest q = given;
    const bool by_call = q.file[0] == '\0';
    std::string kernel = q.name;
    if (by_call) kernel = first_argument(h.arguments);
    const std::string file = by_call ? h.file : q.file;
    const int line = by_call ? h.line : q.line;
    if (current_worker) {
        Report r;
        r.kind = "unsupported";
        r.file = file;
        r.line = line;
        r.message = "a launch from device code (dynamic parallelism) is not supported";
        report(r);
        stop_here(*current_worker->current);
    }
    if (!by_call) note_call(q.file, q.line, "");
    if (forked) return refuse_after_fork();
    cudaError_t error = cudaSuccess;
    const std::string why = refusal(q, kernel, error);
    if (error != cudaSuccess) {
        Report r;
        r.kind = "invalid-launch";
        r.file = file;
        r.line = line;
        r.thread = "host";
        r.message = kernel + " was not launched: " + why;
        report(r);
        h.last = error;
        if (!by_call) {
            h.unread = true;
            h.unread_file = file;
            h.unread_line = line;
            h.unread_message = why;
        }
        return error;
    }
    static std::mutex one_at_a_time;  // host threads may launch side by side; the pool runs one grid
    const std::lock_guard<std::mutex> hold(one_at_a_time);
    if (const cudaError_t unusable = check_stream(q.stream)) return unusable;
    variables.sort();
    std::fflush(stdout);
    RunningLaunch running;
    running.seen.number = ++h.launches;
    running.seen.operation = streams.enqueue(q.stream);
    running.seen.grid = q.grid;
    running.seen.block = q.block;
    running.seen.shared = q.shared;
    running.seen.kernel = kernel;
    running.seen.file = file;
    running.seen.line = line;
    running.seen.cooperative = q.cooperative;
    running.seen.blocks = uint64_t{q.grid.x} * q.grid.y * q.grid.z;
    static const char* const sample = std::getenv("OPWRIGHT_EMULATOR_SAMPLE");
    running.blocks_run = sample ? std::clamp<uint64_t>(std::strtoull(sample, nullptr, 10), 1, running.seen.blocks) : running.seen.blocks;
    running.request = &q;
    const size_t declared = h.declared_shared[plain_name(kernel)];
    running.most_resident =
        std::max<uint64_t>(workers(), static_cast<uint64_t>(blocks_per_sm(size_t{q.block.x} * q.block.y * q.block.z, q.shared + declared)) * limits().sms);
    running_launch = &running;
    run(running);
    running_launch = nullptr;
    const auto number = [](const char* name, uint64_t value) { return std::string(",\"") + name + "\":" + std::to_string(value); };
    if (h.launches <= 10000) {
        write_line("{\"launch\":" + std::to_string(h.launches) + ",\"kernel\":" + json_quoted(kernel) + ",\"file\":" + json_quoted(file) +
                   number("line", static_cast<uint64_t>(line)) + number("grid_x", q.grid.x) + number("grid_y", q.grid.y) +
                   number("grid_z", q.grid.z) + number("block_x", q.block.x) + number("block_y", q.block.y) +
                   number("block_z", q.block.z) + number("blocks_run", running.blocks_run) + number("dynamic_shared", q.shared) + number("declared_shared", running.shared_used) + "}");
    }
    h.declared_shared[plain_name(kernel)] = running.shared_used;
    return cudaSuccess;
}

cudaError_t to_symbol(const void* symbol, const void* from, size_t size, size_t offset, cudaMemcpyKind kind, cudaStream_t stream, bool async) {
    variables.sort();
    if (!variables.at(reinterpret_cast<uintptr_t>(symbol))) return fail(cudaErrorInvalidSymbol);
    return copy(const_cast<char*>(static_cast<const char*>(symbol)) + offset, from, size, kind, stream, async);
}
cudaError_t from_symbol(void* to, const void* symbol, size_t size, size_t offset, cudaMemcpyKind kind, cudaStream_t stream, bool async) {
    variables.sort();
    if (!variables.at(reinterpret_cast<uintptr_t>(symbol))) return fail(cudaErrorInvalidSymbol);
    return copy(to, static_cast<const char*>(symbol) + offset, size, kind, stream, async);
}
cudaError_t symbol_address(void** address, const void* symbol) {
    variables.sort();
    if (!variables.at(reinterpret_cast<uintptr_t>(symbol))) return fail(cudaErrorInvalidSymbol);
    *address = const_cast<void*>(symbol);
    return cudaSuccess;
}
cudaError_t symbol_size(size_t* size, const void* symbol) {
    variables.sort();
    const Allocation* found = variables.at(reinterpret_cast<uintptr_t>(symbol));
    if (!found) return fail(cudaErrorInvalidSymbol);
    *size = found->size();
    return cudaSuccess;
}
cudaError_t set_attribute(const char* call, cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || static_cast<size_t>(value) > limits().shared_per_block_optin) return fail(cudaErrorInvalidValue);
    host().dynamic_limit[plain_name(argument(call, 0))] = static_cast<size_t>(value);
    return cudaSuccess;
}
cudaError_t attributes_of(cudaFuncAttributes* attributes, const char* call) {
    const std::string kernel = argument(call, 1);
    *attributes = cudaFuncAttributes();
    attributes->maxThreadsPerBlock = static_cast<int>(limits().threads_per_block);
    attributes->sharedSizeBytes = host().declared_shared[plain_name(kernel)];
    const auto raised = host().dynamic_limit.find(plain_name(kernel));
    attributes->maxDynamicSharedSizeBytes =
        static_cast<int>(raised == host().dynamic_limit.end() ? limits().shared_per_block : raised->second);
    return cudaSuccess;
}
cudaError_t occupancy(int* blocks, const char* call, int threads, size_t shared) {
    if (!blocks || threads <= 0) return fail(cudaErrorInvalidValue);
    *blocks = blocks_per_sm(static_cast<size_t>(threads), shared + host().declared_shared[plain_name(argument(call, 1))]);
    return cudaSuccess;
}
cudaError_t best_block_size(int* grid, int* block, const char* call, size_t shared, int limit) {
    const size_t declared = host().declared_shared[plain_name(argument(call, 2))];
    const int most = static_cast<int>(limits().threads_per_block);
    int best = 0;
    *block = warp_size;
    for (int size = limit > 0 ? std::min(limit, most) : most; size >= warp_size; size -= warp_size) {
        const int resident = blocks_per_sm(static_cast<size_t>(size), shared + declared);
        if (resident * size > best) {
            best = resident * size;
            *block = size;
            *grid = resident * static_cast<int>(limits().sms);
        }
    }
    return cudaSuccess;
}

void* device_malloc(size_t size) {
    if (!current_worker) return std::malloc(size);
    Allocation* made = heap.allocate(size);
    if (!made) return nullptr;
    made->kind = Allocation::Kind::heap;
    made->name = "memory from the kernel's malloc";
    for (Observer* o : observers.all) o->allocated(*made);
    return reinterpret_cast<void*>(made->low);
}
void device_free(void* memory) {
    if (!current_worker) return std::free(memory);
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
    Allocation* found = memory && heap.contains(address) ? heap.at(address) : nullptr;
    if (!memory) return;
    if (!found || found->low != address || found->freed || found->kind != Allocation::Kind::heap) {
        Report r;
        r.kind = found && found->freed ? "double-free" : "invalid-free";
        r.pc = reinterpret_cast<uintptr_t>(OPW_CALLER);
        r.thread = describe(*current_worker->current);
        r.message = found && found->freed ? "free of memory that was already freed" : "free of an address that malloc did not give";
        report(r);
        return;
    }
    for (Observer* o : observers.all) o->freed(*found);
    heap.release(*found);
}

}  // namespace opw

// `new` and `delete` in device code; everybody else gets the C library's memory. The emulator's own
// allocations come from here too, on a device thread's stack: what tells them apart is the caller.
static inline __attribute__((always_inline)) void* allocate_object(std::size_t size, void* caller) {
    const opw::core::Worker* w = opw::core::current_worker;
    const bool device = w && w->current && opw::core::in_program_text(reinterpret_cast<uintptr_t>(caller));
    void* memory = device ? opw::device_malloc(size ? size : 1) : std::malloc(size ? size : 1);
    if (!memory) throw std::bad_alloc();
    return memory;
}
static void free_object(void* memory) {
    if (memory && opw::core::heap.contains(reinterpret_cast<uintptr_t>(memory))) opw::device_free(memory);
    else std::free(memory);
}
// Never inlined: inside a function of ours the caller would be the program that called it.
OPW_API __attribute__((noinline)) void* operator new(std::size_t size) { return allocate_object(size, OPW_CALLER); }
OPW_API __attribute__((noinline)) void* operator new[](std::size_t size) { return allocate_object(size, OPW_CALLER); }
OPW_API void operator delete(void* memory) noexcept { free_object(memory); }
OPW_API void operator delete[](void* memory) noexcept { free_object(memory); }
OPW_API void operator delete(void* memory, std::size_t) noexcept { free_object(memory); }
OPW_API void operator delete[](void* memory, std::size_t) noexcept { free_object(memory); }

using namespace opw::core;

cudaError_t opw_malloc_managed(void** pointer, size_t size) { return allocate(pointer, size, Allocation::Kind::managed); }

extern "C" {
cudaError_t cudaMalloc(void** pointer, size_t size) { return allocate(pointer, size, Allocation::Kind::device); }
cudaError_t cudaFree(void* pointer) {
    streams.host_waits_for_all();
    return release(pointer);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
    const cudaError_t error = opw::check_stream(stream);
    return error != cudaSuccess ? error : release(pointer);
}
cudaError_t cudaMallocHost(void** pointer, size_t size) { return allocate(pointer, size, Allocation::Kind::pinned); }
cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned) { return allocate(pointer, size, Allocation::Kind::pinned); }
cudaError_t cudaFreeHost(void* pointer) { return release(pointer); }
cudaError_t cudaHostGetDevicePointer(void** device, void* memory, unsigned) {
    *device = memory;
    return cudaSuccess;
}
cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
    if (!pitch) return fail(cudaErrorInvalidValue);
    *pitch = (width + 511) / 512 * 512;
    return allocate(pointer, *pitch * height, Allocation::Kind::device);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) { return copy(to, from, size, kind); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
    const cudaError_t error = opw::check_stream(stream);
    return error != cudaSuccess ? error : copy(to, from, size, kind, stream, true);
}
static cudaError_t copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                             cudaMemcpyKind kind, cudaStream_t stream, bool async) {
    if (width > to_pitch || width > from_pitch) return fail(cudaErrorInvalidPitchValue);
    for (size_t row = 0; row < height; ++row) {
        const cudaError_t error = copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width, kind, stream, async);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind) {
    return copy_rows(to, to_pitch, from, from_pitch, width, height, kind, nullptr, false);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
    const cudaError_t error = opw::check_stream(stream);
    return error != cudaSuccess ? error : copy_rows(to, to_pitch, from, from_pitch, width, height, kind, stream, true);
}
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t size, cudaStream_t stream) {
    const cudaError_t error = opw::check_stream(stream);
    return error != cudaSuccess ? error : fill(pointer, value, size, stream);
}
cudaError_t cudaMemset(void* pointer, int value, size_t size) { return fill(pointer, value, size); }
cudaError_t cudaMemset2D(void* pointer, size_t pitch, int value, size_t width, size_t height) {
    for (size_t row = 0; row < height; ++row) {
        const cudaError_t error = fill(static_cast<char*>(pointer) + row * pitch, value, width);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
    *total = limits().memory;
    *available = limits().memory - host().used;
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void) {
    const cudaError_t error = host().last;
    host().last = cudaSuccess;
    host().unread = false;
    return error;
}
cudaError_t cudaPeekAtLastError(void) {
    host().unread = false;
    return host().last;
}
const char* cudaGetErrorString(cudaError_t error) {
    for (const auto& e : error_texts) if (e.error == error) return e.text;
    return "unrecognized error code";
}
const char* cudaGetErrorName(cudaError_t error) {
    for (const auto& e : error_texts) if (e.error == error) return e.name;
    return "cudaErrorUnknown";
}
cudaError_t cudaDeviceSynchronize(void) {
    streams.host_waits_for_all();
    return cudaSuccess;
}
cudaError_t cudaDeviceReset(void) {
    streams.host_waits_for_all();
    for (Allocation& a : heap.all()) {
        if (!a.runtime || a.freed) continue;
        a.runtime = false;  // given back by the reset, no leak
    }
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : fail(cudaErrorInvalidDevice); }
cudaError_t cudaGetDeviceCount(int* count) {
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
    if (device != 0 || !p) return fail(cudaErrorInvalidDevice);
    const Limits& l = limits();
    *p = cudaDeviceProp();
    std::snprintf(p->name, sizeof p->name, "%s (emulated)", profile().name.c_str());
    p->totalGlobalMem = l.memory;
    p->sharedMemPerBlock = l.shared_per_block;
    p->regsPerBlock = p->regsPerMultiprocessor = static_cast<int>(l.registers_per_sm);
    p->warpSize = warp_size;
    p->memPitch = 2147483647;
    p->maxThreadsPerBlock = static_cast<int>(l.threads_per_block);
    const size_t dims[] = {l.block_x, l.block_y, l.block_z}, grids[] = {l.grid_x, l.grid_y, l.grid_z};
    for (int i = 0; i < 3; ++i) {
        p->maxThreadsDim[i] = static_cast<int>(dims[i]);
        p->maxGridSize[i] = static_cast<int>(grids[i]);
    }
    p->clockRate = static_cast<int>(profile().get("clock_khz", 0));
    p->totalConstMem = 65536;
    p->major = static_cast<int>(profile().get("compute_major", 9));
    p->minor = static_cast<int>(profile().get("compute_minor", 0));
    p->multiProcessorCount = static_cast<int>(l.sms);
    p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->managedMemory = 1;
    p->concurrentManagedAccess = p->cooperativeLaunch = p->streamPrioritiesSupported = 1;
    p->asyncEngineCount = 1;
    p->memoryClockRate = static_cast<int>(profile().get("memory_clock_khz", 0));
    p->memoryBusWidth = static_cast<int>(profile().get("memory_bus_bits", 0));
    p->l2CacheSize = static_cast<int>(profile().get("l2_bytes", 0));
    p->maxThreadsPerMultiProcessor = static_cast<int>(l.threads_per_sm);
    p->sharedMemPerMultiprocessor = l.shared_per_sm;
    p->sharedMemPerBlockOptin = l.shared_per_block_optin;
    p->maxBlocksPerMultiProcessor = static_cast<int>(l.blocks_per_sm);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp p;
    const cudaError_t error = cudaGetDeviceProperties(&p, device);
    if (error != cudaSuccess) return error;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimX: *value = p.maxThreadsDim[0]; break;
    case cudaDevAttrMaxBlockDimY: *value = p.maxThreadsDim[1]; break;
    case cudaDevAttrMaxBlockDimZ: *value = p.maxThreadsDim[2]; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: *value = p.maxGridSize[1]; break;
    case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[2]; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(p.sharedMemPerBlock); break;
    case cudaDevAttrTotalConstantMemory: *value = static_cast<int>(p.totalConstMem); break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = p.regsPerBlock; break;
    case cudaDevAttrClockRate: *value = p.clockRate; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMemoryClockRate: *value = p.memoryClockRate; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = static_cast<int>(p.sharedMemPerMultiprocessor); break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p.regsPerMultiprocessor; break;
    case cudaDevAttrManagedMemory: *value = 1; break;
    case cudaDevAttrConcurrentManagedAccess: *value = 1; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(p.sharedMemPerBlockOptin); break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
    default: return fail(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    // Never deleted, so that a handle that was destroyed is never given out again.
    *stream = reinterpret_cast<cudaStream_t>(new char);
    host().streams.insert(*stream);
    streams.add(*stream, !(flags & cudaStreamNonBlocking));
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (const cudaError_t error = opw::check_stream(stream)) return error;
    host().streams.erase(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    const cudaError_t error = opw::check_stream(stream);
    if (error == cudaSuccess) streams.host_waits(streams.recorded(stream));
    return error;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (const cudaError_t error = opw::check_stream(stream)) return error;
    if (!host().events.count(event)) return fail(cudaErrorInvalidResourceHandle);
    streams.wait(stream, event_of(event)->clock);
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* data) {
    if (const cudaError_t error = opw::check_stream(stream)) return error;
    // It runs behind what is in the stream, and what it knows is not known to the caller.
    const Clock before = streams.host();
    streams.host_waits(streams.enqueue(stream).clock);
    function(data);
    streams.set_host(before);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
    Event* made = new Event;
    host().events.insert(made);
    *event = reinterpret_cast<cudaEvent_t>(made);
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    if (!host().events.erase(event)) return fail(cudaErrorInvalidResourceHandle);
    delete event_of(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    if (const cudaError_t error = opw::check_stream(stream)) return error;
    if (!host().events.count(event)) return fail(cudaErrorInvalidResourceHandle);
    event_of(event)->time = std::chrono::steady_clock::now();
    event_of(event)->recorded = true;
    event_of(event)->clock = streams.recorded(stream);
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (!host().events.count(event)) return fail(cudaErrorInvalidResourceHandle);
    streams.host_waits(event_of(event)->clock);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop) {
    if (!host().events.count(start) || !host().events.count(stop) || !event_of(start)->recorded || !event_of(stop)->recorded) {
        return fail(cudaErrorInvalidResourceHandle);
    }
    *milliseconds = std::chrono::duration<float, std::milli>(event_of(stop)->time - event_of(start)->time).count();
    return cudaSuccess;
}
}
