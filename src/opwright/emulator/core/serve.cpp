// A program that serves launches of one kernel. Requests are lines of words on standard input:
//   file limit poison  gx gy gz  bx by bz  count values...  (offset size lead)...
// `file` holds the operands, inputs first, the output last, each at its offset (lead -1: none, and null
// for the kernel); `values` are 8-byte words in hexadecimal. The line {"served":n} answers the n-th, after what was found in it.
#include <fcntl.h>
#include <sys/stat.h>

#include <cinttypes>
#include <iostream>
#include <sstream>

#include "grid.h"
#include "opwright/call.h"

namespace opw::core {

namespace {

struct Operand {
    size_t offset = 0, size = 0;
    int64_t lead = 0;
    void* device = nullptr;
};

// Inputs are const; a kernel that casts that away is found by what it changed.
void check_unchanged(const Operand& input, const char* name, const char* given) {
    const char* now = static_cast<const char*>(input.device);
    if (std::memcmp(now, given, input.size) == 0) return;
    const size_t at = static_cast<size_t>(std::mismatch(now, now + input.size, given).first - now);
    Report r;
    r.kind = "writes-input";
    r.message = std::string(name) + " was changed, first at byte " + std::to_string(at) + ": inputs are read-only";
    r.details = {{"array", name}, {"offset", std::to_string(at)}};
    report(r);
}

bool serve_one(const std::string& request, void (*launch)(dim3, dim3, void* const*, const Value*), const char* const* names,
               size_t tensors) {
    std::istringstream words(request);
    std::string path;
    double limit = 0;
    int poison = 0;
    dim3 grid, block;
    size_t value_count = 0;
    words >> path >> limit >> poison >> grid.x >> grid.y >> grid.z >> block.x >> block.y >> block.z >> value_count;
    words >> std::hex;
    std::vector<Value> values(value_count);
    for (Value& v : values) {
        uint64_t bits = 0;
        words >> bits;
        std::memcpy(&v, &bits, sizeof v);
    }
    words >> std::dec;
    std::vector<Operand> operands(tensors);
    for (Operand& o : operands) words >> o.offset >> o.size >> o.lead;
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct stat status {};
    if (!words || file < 0 || fstat(file, &status)) return false;
    const size_t bytes = static_cast<size_t>(status.st_size);
    void* const mapped = bytes ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : nullptr;
    close(file);
    if (mapped == MAP_FAILED) return false;
    char* const base = static_cast<char*>(mapped);
    std::vector<void*> pointers;
    for (size_t i = 0; i < tensors; ++i) {
        Operand& o = operands[i];
        if (o.lead < 0) {
            pointers.push_back(nullptr);
            continue;
        }
        if (place(&o.device, o.size, static_cast<size_t>(o.lead), names[i]) != cudaSuccess) {
            write_line("{\"refused\":" + json_quoted(names[i]) + "}");
            return false;
        }
        pointers.push_back(o.device);
        if (!o.size) continue;
        // The poison is nothing that anybody wrote: reading it before writing is found.
        if (i + 1 < tensors) cudaMemcpy(o.device, base + o.offset, o.size, cudaMemcpyHostToDevice);
        else std::memset(o.device, poison, o.size);
    }
    limit_time(limit);
    if (grid.x || grid.y || grid.z) launch(grid, block, pointers.data(), values.data());  // else nothing to compute
    limit_time(0);
    cudaGetLastError();  // what was refused is a finding already
    for (size_t i = 0; i < tensors; ++i) {
        const Operand& o = operands[i];
        if (!o.size) continue;
        if (i + 1 < tensors) check_unchanged(o, names[i], base + o.offset);
        else std::memcpy(base + o.offset, o.device, o.size);
        cudaFree(o.device);
    }
    if (mapped) munmap(mapped, bytes);
    return true;
}

}  // namespace

}  // namespace opw::core

namespace opw {

int serve(void (*launch)(dim3, dim3, void* const*, const Value*), const char* const* names, std::size_t tensors) {
    std::string request;
    for (uint64_t served = 1; std::getline(std::cin, request); ++served) {
        if (!core::serve_one(request, launch, names, tensors)) return 3;
        std::fflush(stdout);
        core::write_line("{\"served\":" + std::to_string(served) + "}");
    }
    return 0;
}

}  // namespace opw
