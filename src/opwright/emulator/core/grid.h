// Running a grid: host threads take blocks, blocks hold warps, warps hold threads, threads are fibers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "fiber.h"
#include "hooks.h"
#include "memory.h"
#include "profile.h"

namespace opw::core {

constexpr size_t shared_span = size_t{1} << 20;       // of one block's arena
constexpr size_t shared_static = size_t{1} << 18;     // where declared arrays begin; dynamic at 0
constexpr size_t shared_granule = 128;
constexpr int turn = 2048;                            // events a thread may make in one go
constexpr int waiting_cost = 32;                      // of an atomic or volatile access in events

struct RunningLaunch;

// Everything one resident block needs, kept for the next block.
struct Slot {
    Block block;
    std::vector<Thread> threads;
    uintptr_t arena = 0;
    uint64_t layout_of = 0;  // the launch whose shared arrays are laid out
    uintptr_t next_shared = 0;
    std::deque<Allocation> objects;
    std::vector<Allocation*> by_declaration;
    Allocation* by_granule[shared_span / shared_granule] = {};
    std::string output;
    uint32_t left = 0;   // threads that have not ended
    bool at_grid = false;
    uint64_t generation = 0;
};

struct Worker {
    Thread* current = nullptr;
    Slot* slot = nullptr;
    RunningLaunch* launch = nullptr;
    Fiber home;
    std::vector<Fiber*> idle;
    std::vector<Slot*> idle_slots;
    Thread* latest = nullptr;         // the thread that ran last
    std::atomic<bool> busy{false};
    pthread_t host_thread{};
};

struct RunningLaunch {
    Grid seen;  // what observers get
    const LaunchRequest* request = nullptr;
    uint64_t blocks_run = 0;  // all of them, or a sample spread over the grid
    std::atomic<uint64_t> next{0};
    std::atomic<uint64_t> resident{0};
    uint64_t most_resident = 1;
    std::atomic<uint64_t> finished{0};
    std::atomic<uint64_t> at_grid{0};
    std::atomic<uint64_t> generation{0};
    std::atomic<const Thread*> grid_waiter{nullptr};  // one of those at the grid's barrier
    std::atomic<bool> aborted{false};
    std::atomic<bool> shared_reported{false};
    std::atomic<bool> unseen_reported{false};
    std::mutex mutex;
    std::vector<std::pair<uint64_t, std::string>> output;
    std::atomic<size_t> shared_used{0};
};

extern bool forked;  // this process is a child of the program's own
extern thread_local Worker* current_worker __attribute__((tls_model("initial-exec")));

struct Observers {
    std::vector<Observer*> all;
};
extern Observers observers;

struct Workers {
    std::mutex mutex;
    std::vector<Worker*> list;
};
extern Workers& all_workers;
void prepare_host_thread();

void run(RunningLaunch& launch);
void event(Thread& t, uintptr_t address, uint32_t size, unsigned flags, uintptr_t pc);
void traced_range(uintptr_t address, size_t size, unsigned flags, void* pc);
Allocation* place_shared(Slot& slot, uintptr_t at, size_t size);
extern Stacks& stacks;
bool in_program_text(uintptr_t pc);
bool in_host_data(uintptr_t address);
void wait_here(Thread& thread, Thread::State state, uintptr_t pc);
void stop_here(Thread& thread);  // ends the calling thread; does not return
void give_way(Thread& thread);
void flush_output(RunningLaunch& launch);

}  // namespace opw::core
