// What this processor, its operating system and its kernel's permission allow.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace opw::ship {

// One bit of CPUID: `reg` is 0 to 3 for EAX to EDX; `state` the bits of XCR0 without which the operating
// system does not keep the registers.
struct Feature {
    const char* name;
    std::uint32_t leaf, subleaf;
    int reg, bit;
    std::uint64_t state;
};

#if defined(__x86_64__)

inline bool has_feature(const Feature& feature) {
    unsigned words[4];
    if (__get_cpuid_max(0, nullptr) < feature.leaf) return false;
    __cpuid_count(feature.leaf, 0, words[0], words[1], words[2], words[3]);
    if (feature.subleaf > 0) {
        if (words[0] < feature.subleaf) return false;  // EAX of subleaf 0 is the last subleaf
        __cpuid_count(feature.leaf, feature.subleaf, words[0], words[1], words[2], words[3]);
    }
    if ((words[feature.reg] >> feature.bit & 1u) == 0) return false;
    if (feature.state == 0) return true;
    unsigned one[4];
    __cpuid(1, one[0], one[1], one[2], one[3]);
    if ((one[2] >> 27 & 1u) == 0) return false;  // OSXSAVE: XGETBV exists
    std::uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    const std::uint64_t enabled = std::uint64_t{high} << 32 | low;
    return (enabled & feature.state) == feature.state;
}

// Linux grants tile registers to a process that asks; the first tile instruction without kills it.
inline bool permit_tiles() {
    constexpr long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

#else

inline bool has_feature(const Feature&) { return false; }
inline bool permit_tiles() { return false; }

#endif

}  // namespace opw::ship
