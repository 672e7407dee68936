// What the core knows of a running grid, and the hooks through which observers see it. The core
// decides what happens; observers decide what is worth telling. The core never names an observer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "opwright/cuda/detail/host.h"

namespace opw::core {

using std::size_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;
using std::uintptr_t;

constexpr int warp_size = 32;

// Which of the pointers that the core keeps for observers is whose: constants, so that finding them
// costs one load.
enum ShadowSlot : int { shadow_initialized, shadow_races, shadow_slots };
enum ThreadSlot : int { thread_races, thread_counters, thread_slots };

enum class Space : uint8_t { global, shared, local, constant, other };

enum Flag : unsigned {
    is_read = 1,
    is_write = 2,
    is_atomic = 4,
    is_volatile = 8,
    scope_block = 16,  // atomic among the threads of one block only
    is_compare = 32,   // writes only if nothing changed since the value was read
    is_branch = 64,    // no access: a condition of an if or a loop
};

// Memory that a kernel may name: a device allocation, a variable, or a block's shared array.
struct Allocation {
    enum class Kind : uint8_t { device, managed, pinned, variable, constant_variable, shared, dynamic_shared, heap, local };
    uintptr_t low = 0;
    uintptr_t high = 0;
    Kind kind = Kind::device;
    bool freed = false;
    bool indexed = false;  // a local array that a device cannot keep in registers
    bool runtime = false;  // made by the program, so that it should also be freed by it
    std::string name;
    std::string file;
    int line = 0;
    std::string free_file;
    int free_line = 0;
    void* shadow[shadow_slots] = {};

    bool host_may_touch() const { return kind == Kind::managed || kind == Kind::pinned; }
    size_t size() const { return high - low; }
    // Where observers number its words from: an array may begin between two words.
    uintptr_t base() const { return low & ~uintptr_t{15}; }
};

// A place in the program's text that touches memory.
struct Site {
    uintptr_t pc = 0;
    unsigned flags = 0;
    uint32_t size = 0;
};

struct Block;
struct Warp;
struct Grid;

// A declared local array, and the span of those declared before it.
struct LocalArrays {
    Allocation array;
    uintptr_t low_before = 0, span_before = 0;
};

struct Thread {
    Block* block = nullptr;
    Warp* warp = nullptr;
    uint32_t linear = 0;  // within the block
    uint32_t lane = 0;
    uint3 index{};

    enum class State : uint8_t { fresh, ready, barrier, warp, grid, exited, stopped };
    State state = State::fresh;
    bool blocked() const { return state == State::barrier || state == State::warp || state == State::grid; }
    void at(uintptr_t pc) {
        last_pc = pc;
        highest_pc = pc > highest_pc ? pc : highest_pc;
    }
    bool gone() const { return state == State::exited || state == State::stopped; }

    int budget = 0;             // events until it is another thread's turn
    uint32_t spins = 0;         // atomic and volatile accesses in this turn
    uintptr_t stack_low = 0;
    uintptr_t stack_high = 0;
    uintptr_t last_pc = 0;      // of its latest event
    uintptr_t highest_pc = 0;   // of all its events

    // Its declared local arrays, innermost last; the objects outlive them and are used again.
    std::vector<LocalArrays*> locals;
    size_t locals_alive = 0;
    uintptr_t locals_low = 0;
    uintptr_t locals_span = 0;

    // While it waits.
    uintptr_t wait_pc = 0;
    int barrier_kind = 0;
    int predicate = 0;
    int result = 0;
    int operation = 0;
    uint32_t mask = 0;
    uint64_t value = 0;
    int source = 0;
    int width = warp_size;
    int second = 0;

    void* fiber = nullptr;
    void* kept[thread_slots] = {};
};

struct Warp {
    Block* block = nullptr;
    uint32_t index = 0;
    uint32_t lanes = 0;  // 32, fewer in the block's last warp
    Thread* threads = nullptr;
    uint32_t waiting = 0;  // lanes in a warp operation
    struct Operation {
        uintptr_t pc;
        uint32_t came[warp_size];  // how often each lane came there so far
    };
    std::vector<Operation> operations;
};

struct Block {
    Grid* launch = nullptr;
    uint3 index{};
    unsigned numbers[9] = {};  // index, block's size, grid's size
    uint64_t linear = 0;
    uint32_t slot = 0;  // which of the resident blocks, from 0: what observers keep state by
    Thread* threads = nullptr;
    uint32_t thread_count = 0;
    std::vector<Warp> warps;
    uintptr_t shared_low = 0;
    uintptr_t shared_high = 0;
    std::vector<Allocation*> shared_objects;
    int diverged = -1;     // the finding that said so last: what comes of it is no finding of its own
    bool faulted = false;  // a thread was stopped: what it left undone is no finding of its own
};

// Work that the host gave to a stream: it is done before all whose clock has its number.
using Clock = std::vector<uint64_t>;
struct Operation {
    uint32_t stream = 0;
    uint64_t number = 0;  // within the stream, from 1
    bool waited = false;  // the host goes on only when it is done
    Clock clock;          // of each stream, how much is done before this or is this
};

struct Grid {
    uint64_t number = 0;  // from 1
    Operation operation;
    dim3 grid;
    dim3 block;
    size_t shared = 0;
    std::string kernel;
    std::string file;
    int line = 0;
    bool cooperative = false;
    uint64_t blocks = 0;
};

struct Access {
    Thread* thread;
    uintptr_t address;
    uint32_t size;
    unsigned flags;
    uint32_t site;
    Space space;
    Allocation* allocation;  // null when the address is in none
    bool array_of_constants; // read-only data of the program itself
};

// One thing found. `pc` and `other_pc` are return addresses, turned into lines by the driver.
struct Report {
    const char* kind = "";
    uintptr_t pc = 0;
    uintptr_t other_pc = 0;
    std::string file;  // instead of pc, where the core knows the line
    int line = 0;
    std::string message;
    std::string thread;        // who did it, in words
    std::string other_thread;
    std::vector<std::pair<std::string, std::string>> details;
    int after = -1;            // the finding from which this one follows
};
// Counted under (kind, pc or line, other pc); the first one is the example. Returns its number.
int report(const Report& report, uint64_t count = 1);
void report_again(int number);  // one more of the same
// One of the races counted under this number turned out to write the value that was there.
void report_same_value(int number);

std::string describe(const Thread& thread);
std::string describe(const Grid& launch, uint64_t block, uint32_t thread);  // from linear numbers

class Observer {
public:
    virtual ~Observer() = default;
    virtual void allocated(Allocation&) {}
    virtual void freed(Allocation&) {}
    // The host wrote (memset, memcpy), or copied device memory from elsewhere on the device.
    virtual void host_wrote(Allocation&, uintptr_t, size_t) {}
    virtual void device_copied(Allocation&, uintptr_t, Allocation&, uintptr_t, size_t) {}
    // A copy or memset in a stream; of the grid only the operation and the place of the call are set.
    virtual void copied(Allocation&, uintptr_t, size_t, unsigned, const Grid&) {}
    virtual void host_accessed(Allocation&, uintptr_t, uint32_t, unsigned, uintptr_t) {}
    virtual void launch_begins(Grid&) {}
    virtual void launch_ends(Grid&) {}
    virtual void block_begins(Block&) {}
    virtual void shared_appears(Block&, Allocation&) {}
    virtual void local_appears(Allocation&) {}
    virtual void block_ends(Block&) {}
    virtual void turn_ends(Warp&) {}  // each lane has run until it waited, ended or used its turn
    virtual void fence(Thread&, Scope) {}
    virtual void barrier(Block&) {}             // every live thread has arrived; none has left
    virtual void warp_synchronized(Warp&, uint32_t, uintptr_t) {}  // by these lanes
    virtual void branched(Thread&, uintptr_t, bool) {}
    virtual void warp_operation(Thread&, uintptr_t) {}              // one lane came to one
    virtual void grid_synchronized(Grid&) {}
    // What the scheduler found.
    virtual void barrier_left_out(Block&, const Thread&, const std::vector<const Thread*>&) {}
    virtual void barrier_diverged(Block&, const Thread&, const Thread&, uint32_t) {}
    virtual void lane_foreign(const Thread&, uint32_t, uintptr_t) {}
    virtual void source_silent(const Thread&, uint32_t, uintptr_t) {}  // shuffled from a lane that takes no part
    virtual void lanes_missing(Warp&, const Thread&, uint32_t) {}
    virtual void grid_barrier_left_out(Grid&, const Thread&, uint64_t) {}
    virtual void launch_refused(const LaunchRequest&, const std::string&) {}
    virtual void finished() {}
};

void add_observer(Observer* observer);
// Asked before every access; false stops the thread. One function for all checks together, so that a
// compiler makes one straight piece of code of them, and one more for each size of a plain access
// (1, 2, 4, 8, 16 bytes) that deserves it. Null when nobody looks.
struct AccessHooks {
    bool (*read[5])(Thread&, uintptr_t address, uintptr_t pc) = {};
    bool (*write[5])(Thread&, uintptr_t address, uintptr_t pc) = {};
    bool (*any)(Thread&, uintptr_t address, uint32_t size, unsigned flags, uintptr_t pc) = nullptr;
};
extern AccessHooks hooks;
const Site& site(uint32_t index);
uint32_t site_at(uintptr_t pc, unsigned flags, uint32_t size);  // its number, given out at first sight
uint32_t slots();  // resident blocks so far: Block::slot is below it
void write_line(const std::string& line);
std::string json_quoted(const std::string& text);
uint64_t workers();

}  // namespace opw::core
