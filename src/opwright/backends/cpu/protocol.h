// What the worker and its client say to one another, one datagram each. protocol.py mirrors this.
#pragma once

#include <cstdint>

namespace runner {

constexpr std::uint32_t kMagic = 0x3157504F;  // "OPW1"

enum class Op : std::uint32_t { upload = 1, free = 2, launch = 3, clock = 4 };

// Followed by `count` 8-byte words (upload: sizes in bytes, the output's last; launch and clock: the
// kernel's values) and, for launch and clock, the artifact's path, a zero byte
// and the name of the function in it. An upload carries two file
// descriptors: the sealed inputs and the output.
struct Command {
    std::uint32_t magic;
    Op op;
    std::uint64_t token;  // a random number that the reply has to repeat
    std::uint64_t buffers;
    std::uint32_t placement;  // see Placement in memory.h
    std::uint32_t count;
    std::uint32_t threads;
    std::uint32_t watch_ms;
    std::uint32_t cold;
    std::uint32_t samples;
    double min_sample_ns;
    std::uint64_t absent;  // launch and clock: a bit for each input in whose place the kernel gets null
};

enum class Kind : std::uint32_t {
    done = 1,      // upload: `count` addresses follow; clock: `count` samples in ns follow
    alive = 2,     // clock: calls are still returning
    refused = 3,   // no memory, or the library cannot be loaded: text follows
    signalled = 4,
    thrown = 5,    // text follows
    late = 6,      // `count` bytes changed, the first at `address`
    environment = 7  // the thread computes otherwise after it: text follows
};

enum class Stage : std::uint32_t { idle = 0, loading = 1, running = 2, watching = 3 };

enum class Access : std::uint32_t { unknown = 0, read = 1, write = 2 };

struct Reply {
    std::uint32_t magic;
    Kind kind;
    std::uint64_t token;
    std::int32_t signal;
    std::int32_t code;  // si_code
    Access access;
    Stage stage;
    std::uint64_t address;
    std::uint64_t stack_pointer;
    std::uint64_t stack_low;  // 0 on threads that the kernel made itself
    std::uint64_t count;
    std::uint64_t calls;  // clock: calls in each sample
    double first_ns;      // clock: the first call of this artifact
};

static_assert(sizeof(Command) == 64 && sizeof(Reply) == 80, "protocol.py counts on these sizes");

}  // namespace runner
