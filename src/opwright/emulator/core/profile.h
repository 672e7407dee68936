// The device that programs believe they run on: numbers the driver hands over, unknown ones absent.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>

#include "hooks.h"

namespace opw::core {

struct Profile {
    std::string name = "emulated device";
    std::map<std::string, double> numbers;

    double get(const char* key, double unknown) const {
        const auto found = numbers.find(key);
        return found == numbers.end() ? unknown : found->second;
    }
    size_t size(const char* key, size_t unknown) const {
        return static_cast<size_t>(get(key, static_cast<double>(unknown)));
    }
};

inline Profile read_profile() {
    Profile profile;
    // "name=NVIDIA H200;sms=132;..."
    const char* text = std::getenv("OPWRIGHT_EMULATOR_PROFILE");
    std::string rest = text ? text : "";
    while (!rest.empty()) {
        const size_t end = rest.find(';');
        const std::string item = rest.substr(0, end);
        rest = end == std::string::npos ? "" : rest.substr(end + 1);
        const size_t equals = item.find('=');
        if (equals == std::string::npos) continue;
        const std::string key = item.substr(0, equals);
        if (key == "name") {
            profile.name = item.substr(equals + 1);
        } else {
            profile.numbers[key] = std::strtod(item.c_str() + equals + 1, nullptr);
        }
    }
    return profile;
}

inline const Profile& profile() {
    static const Profile read = read_profile();
    return read;
}

// Where a device's own limit is unknown, the emulator's applies: 1024 threads and 228 KiB of shared
// memory for a block, and as many blocks as anybody asks for.
struct Limits {
    size_t threads_per_block = std::min<size_t>(profile().size("threads_per_block", 1024), 1024);
    size_t block_x = profile().size("block_x", 1024);
    size_t block_y = profile().size("block_y", 1024);
    size_t block_z = profile().size("block_z", 1024);
    size_t grid_x = profile().size("grid_x", 2147483647);
    size_t grid_y = profile().size("grid_y", 2147483647);
    size_t grid_z = profile().size("grid_z", 2147483647);
    size_t shared_per_block = std::min<size_t>(profile().size("shared_per_block", 233472), 233472);
    size_t shared_per_block_optin = std::min<size_t>(profile().size("shared_per_block_optin", shared_per_block), 233472);
    size_t shared_per_sm = profile().size("shared_per_sm", shared_per_block_optin);
    size_t shared_reserved = profile().size("shared_reserved_per_block", 0);
    size_t threads_per_sm = profile().size("threads_per_sm", 2048);
    size_t blocks_per_sm = profile().size("blocks_per_sm", 32);
    size_t warps_per_sm = profile().size("warps_per_sm", 64);
    size_t registers_per_sm = profile().size("registers_per_sm", 65536);
    size_t sms = profile().size("sms", 1);
    // The checks keep up to nine bytes for each of the device's.
    size_t host_memory = profile().size("host_memory_bytes", size_t{80} << 30);
    size_t memory = std::min(profile().size("memory_bytes", host_memory / 10), host_memory / 10);
};
inline const Limits& limits() {
    static const Limits read;
    return read;
}

}  // namespace opw::core
