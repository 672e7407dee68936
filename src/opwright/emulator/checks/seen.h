// Findings repeat millions of times: after the first, counting one must cost nanoseconds.
#pragma once

#include <unordered_map>

#include "core/trace.h"

namespace opw::checks {

using namespace opw::core;

// The number of a finding of this kind at a pair of sites; `make` is asked for it the first time.
template <class Make> int count_finding(uint32_t kind, uint32_t site, uint32_t other, const Make& make) {
    thread_local std::unordered_map<uint64_t, int> known;
    const uint64_t key = uint64_t{kind} << 40 | uint64_t{site} << 20 | other;
    const auto found = known.find(key);
    if (found != known.end()) {
        report_again(found->second);
        return found->second;
    }
    const int number = report(make());
    known.emplace(key, number);
    return number;
}

inline std::string operation(unsigned flags, uint32_t size) {
    const char* what = flags & is_atomic ? "atomic operation" : flags & is_write ? "write" : "read";
    return std::string(what) + " of " + std::to_string(size) + (size == 1 ? " byte" : " bytes");
}

// Zeroed memory that takes no room until it is touched.
template <class T> T* zeroed(size_t count) {
    void* memory = mmap(nullptr, std::max<size_t>(count, 1) * sizeof(T), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        std::fputs("emulator: no memory for the checks\n", stderr);
        std::_Exit(125);
    }
    return static_cast<T*>(memory);
}
template <class T> void give_back(T* memory, size_t count) {
    if (memory) munmap(memory, std::max<size_t>(count, 1) * sizeof(T));
}

}  // namespace opw::checks
