#include "grid.h"

#include <sched.h>

#include <random>

namespace opw::core {

thread_local Worker* current_worker = nullptr;
bool forked = false;
Observers observers;
Workers& all_workers = *new Workers;
Stacks& stacks = *new Stacks;

Allocation* place_shared(Slot& slot, uintptr_t at, size_t size) {
    Allocation& object = slot.objects.emplace_back();
    object.low = at;
    object.high = at + size;
    object.kind = Allocation::Kind::shared;
    for (uintptr_t g = at; g < at + size; g += shared_granule) {
        slot.by_granule[(g - slot.arena) / shared_granule] = &object;
    }
    slot.block.shared_objects.push_back(&object);
    return &object;
}

namespace {

std::atomic<uint32_t> slots_made{0};

uint64_t environment(const char* name, uint64_t otherwise) {
    const char* text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

uint64_t seed() {
    static const uint64_t value = environment("OPWRIGHT_EMULATOR_SEED", 0);
    return value;
}

// A kernel in a file that was not rewritten runs, but nothing in it is checked.
void report_unseen(RunningLaunch& launch) {
    if (launch.unseen_reported.exchange(true)) return;
    Report r;
    r.kind = "unsupported";
    r.file = launch.seen.file;
    r.line = launch.seen.line;
    r.message = launch.seen.kernel + " is defined in a file outside the program's own folders, so nothing in it was checked; "
                                     "name its folder with -I";
    report(r);
}

[[noreturn]] void fiber_main() {
    for (;;) {
        Worker& w = *current_worker;
        Thread& t = *w.current;
        w.launch->request->body(w.launch->request->arguments);
        // `w` may be stale: a compiler cannot know that the call above switched stacks.
        Worker& now = *current_worker;
        t.state = Thread::State::exited;
        if (t.stack_low == 0) report_unseen(*now.launch);
        leave(*static_cast<Fiber*>(t.fiber), now.home);
    }
}

Slot* make_slot(Worker& w) {
    if (!w.idle_slots.empty()) {
        Slot* slot = w.idle_slots.back();
        w.idle_slots.pop_back();
        return slot;
    }
    Slot* slot = new Slot;
    slot->block.slot = slots_made++;
    slot->arena = Heap::reserve(shared_span);
    mprotect(reinterpret_cast<void*>(slot->arena), shared_span, PROT_READ | PROT_WRITE);
    slot->block.shared_low = slot->arena;
    slot->block.shared_high = slot->arena + shared_span;
    return slot;
}

void start_block(RunningLaunch& launch, Slot& slot, uint64_t linear) {
    Block& b = slot.block;
    const dim3 size = launch.seen.block, grid = launch.seen.grid;
    b.launch = &launch.seen;
    b.linear = linear;
    b.index = uint3{static_cast<unsigned>(linear % grid.x), static_cast<unsigned>(linear / grid.x % grid.y),
                    static_cast<unsigned>(linear / (uint64_t{grid.x} * grid.y))};
    const unsigned numbers[] = {b.index.x, b.index.y, b.index.z, size.x, size.y, size.z, grid.x, grid.y, grid.z};
    std::copy(std::begin(numbers), std::end(numbers), b.numbers);
    const uint32_t count = size.x * size.y * size.z;
    if (slot.layout_of != launch.seen.number) {
        slot.layout_of = launch.seen.number;
        slot.objects.clear();
        b.shared_objects.clear();
        std::fill(slot.by_declaration.begin(), slot.by_declaration.end(), nullptr);
        std::fill(std::begin(slot.by_granule), std::end(slot.by_granule), nullptr);
        slot.next_shared = slot.arena + shared_static;
        slot.threads.resize(count);
        b.threads = slot.threads.data();
        b.thread_count = count;
        b.warps.assign((count + warp_size - 1) / warp_size, Warp());
        for (uint32_t i = 0; i < b.warps.size(); ++i) {
            b.warps[i].block = &b;
            b.warps[i].index = i;
            b.warps[i].threads = b.threads + i * warp_size;
            b.warps[i].lanes = std::min<uint32_t>(warp_size, count - i * warp_size);
        }
        for (uint32_t i = 0; i < count; ++i) {
            Thread& t = b.threads[i];
            t.block = &b;
            t.warp = &b.warps[i / warp_size];
            t.linear = i;
            t.lane = i % warp_size;
            t.index = uint3{i % size.x, i / size.x % size.y, i / (size.x * size.y)};
        }
        if (launch.seen.shared) {
            Allocation* dynamic = place_shared(slot, slot.arena, launch.seen.shared);
            dynamic->name = "dynamic shared memory";
            dynamic->kind = Allocation::Kind::dynamic_shared;
            for (Observer* o : observers.all) o->shared_appears(b, *dynamic);
        }
    }
    for (uint32_t i = 0; i < count; ++i) {
        Thread& t = b.threads[i];
        t.state = Thread::State::fresh;
        t.fiber = nullptr;
        t.spins = 0;
        t.last_pc = t.highest_pc = 0;
        t.locals_alive = 0;
        t.locals_low = t.locals_span = 0;
    }
    for (Warp& warp : b.warps) {
        warp.waiting = 0;
        warp.operations.clear();
    }
    b.faulted = false;
    b.diverged = -1;
    slot.left = count;
    slot.at_grid = false;
    for (Observer* o : observers.all) o->block_begins(b);
}

void resume(Worker& w, Slot& slot, Thread& t) {
    if (t.state == Thread::State::fresh) {
        if (w.idle.empty()) w.idle.push_back(stacks.make());
        Fiber* fiber = w.idle.back();
        w.idle.pop_back();
        prepare(*fiber, fiber_main);
        t.fiber = fiber;
        // Until the kernel is entered, no address is of interest.
        t.stack_low = 0;
        t.stack_high = ~uintptr_t{0};
        t.state = Thread::State::ready;
    }
    t.budget = turn;
    t.spins = 0;
    w.current = w.latest = &t;
    w.slot = &slot;
    Fiber* fiber = static_cast<Fiber*>(t.fiber);
    enter(*fiber, w.home);
    w.current = nullptr;
    if (t.gone()) {
        --slot.left;
        t.fiber = nullptr;
        w.idle.push_back(fiber);
    }
}

// ---- Warp operations --------------------------------------------------------------------------

void complete(Warp& w, uint32_t group, uintptr_t pc) {
    using Op = WarpOperation;
    Thread* const lane = w.threads;
    const Op op = static_cast<Op>(lane[__builtin_ctz(group)].operation);
    uint64_t folded = 0;
    bool first = true;
    const auto each = [&](auto&& body) {
        for (uint32_t rest = group; rest; rest &= rest - 1) body(lane[__builtin_ctz(rest)]);
    };
    if (op == Op::sync || op == Op::active) folded = group;
    switch (op) {
    case Op::ballot: each([&](Thread& t) { folded |= uint64_t{t.value != 0} << t.lane; }); break;
    case Op::all: folded = 1; each([&](Thread& t) { folded &= t.value != 0; }); break;
    case Op::any: each([&](Thread& t) { folded |= t.value != 0; }); break;
    case Op::add: each([&](Thread& t) { folded = static_cast<uint32_t>(folded + t.value); }); break;
    case Op::bit_or: each([&](Thread& t) { folded |= t.value; }); break;
    case Op::bit_xor: each([&](Thread& t) { folded ^= t.value; }); break;
    case Op::bit_and: folded = ~uint64_t{0}; each([&](Thread& t) { folded &= t.value; }); break;
    case Op::min: case Op::max: case Op::min_signed: case Op::max_signed:
        each([&](Thread& t) {
            const uint32_t a = static_cast<uint32_t>(folded), b = static_cast<uint32_t>(t.value);
            const int32_t sa = static_cast<int32_t>(a), sb = static_cast<int32_t>(b);
            const bool better = op == Op::min ? b < a : op == Op::max ? b > a : op == Op::min_signed ? sb < sa : sb > sa;
            if (first || better) folded = b;
            first = false;
        });
        break;
    default: break;
    }
    uint64_t results[warp_size] = {};
    int seconds[warp_size] = {};
    each([&](Thread& t) {
        uint64_t result = folded;
        const int l = static_cast<int>(t.lane);
        const int low = l & ~(t.width - 1);
        int from = l;
        switch (op) {
        case Op::shuffle: from = low | (t.source & (t.width - 1)); break;
        case Op::shuffle_up: from = l - t.source >= low ? l - t.source : l; break;
        case Op::shuffle_down: from = l + t.source < low + t.width ? l + t.source : l; break;
        case Op::shuffle_xor: from = (l ^ t.source) < low + t.width ? l ^ t.source : l; break;
        case Op::match_any:
            result = 0;
            each([&](Thread& o) { result |= uint64_t{o.value == t.value} << o.lane; });
            break;
        case Op::match_all:
            result = group;
            each([&](Thread& o) { if (o.value != t.value) result = 0; });
            seconds[l] = result != 0;
            break;
        default: break;
        }
        if (op == Op::shuffle || op == Op::shuffle_up || op == Op::shuffle_down || op == Op::shuffle_xor) {
            // What a lane that takes no part holds is undefined; the reader keeps its own value. With
            // up and down this is how sums over part of a warp run out, in lanes whose result is not used.
            const bool named = op == Op::shuffle || op == Op::shuffle_xor;
            if (named && !(group >> from & 1) && (!(t.mask >> from & 1) || lane[from].gone() || static_cast<uint32_t>(from) >= w.lanes)) {
                for (Observer* o : observers.all) o->source_silent(t, static_cast<uint32_t>(from), pc);
            }
            result = group >> from & 1 ? lane[from].value : t.value;
        }
        results[l] = result;
    });
    each([&](Thread& t) {
        t.value = results[t.lane];
        t.second = seconds[t.lane];
        t.state = Thread::State::ready;
    });
    w.waiting -= static_cast<uint32_t>(__builtin_popcount(group));
    if (op == Op::sync) for (Observer* o : observers.all) o->warp_synchronized(w, group, pc);
}

// Lanes that ended without coming to this operation (as often, in a loop) although they ran code
// behind it, where no lane of the group has been: they took another branch, or left the loop earlier.
// Lanes that returned before it are excused from their mask.
uint32_t passed_by(const Warp& w, const Thread& waiting, uint32_t group) {
    const uintptr_t pc = waiting.wait_pc;
    const auto operation = std::find_if(w.operations.begin(), w.operations.end(), [pc](const auto& o) { return o.pc == pc; });
    if (operation == w.operations.end()) return 0;
    uintptr_t highest = 0;
    for (uint32_t rest = group; rest; rest &= rest - 1) highest = std::max(highest, w.threads[__builtin_ctz(rest)].highest_pc);
    uint32_t passed = 0;
    for (uint32_t l = 0; l < w.lanes; ++l) {
        const Thread& t = w.threads[l];
        if (t.state != Thread::State::exited || operation->came[l] >= operation->came[waiting.lane]) continue;
        if (t.last_pc > (operation->came[l] ? highest : pc)) passed |= 1u << l;
    }
    return passed;
}

bool resolve(Warp& w, bool forced) {
    using State = Thread::State;
    uint32_t alive = 0, waiting = 0, ready = 0;
    for (uint32_t l = 0; l < w.lanes; ++l) {
        const State s = w.threads[l].state;
        if (!w.threads[l].gone()) alive |= 1u << l;
        if (s == State::warp) waiting |= 1u << l;
        if (s == State::ready || s == State::fresh) ready |= 1u << l;
    }
    bool changed = false;
    const int active = static_cast<int>(WarpOperation::active);
    for (uint32_t rest = waiting; rest;) {
        Thread& t = w.threads[__builtin_ctz(rest)];
        uint32_t group = 0;
        for (uint32_t r = rest; r; r &= r - 1) {
            Thread& o = w.threads[__builtin_ctz(r)];
            if (o.operation == t.operation && o.mask == t.mask && (t.operation != active || o.wait_pc == t.wait_pc)) {
                group |= 1u << o.lane;
            }
        }
        rest &= ~group;
        if (t.operation == active) {
            // Who is active is known once nobody of the warp can still come along.
            if (ready) continue;
            complete(w, group, t.wait_pc);
            changed = true;
            continue;
        }
        uint32_t missing = t.mask & alive & ~group;
        if (missing && !forced) continue;
        missing |= t.mask & passed_by(w, t, group);
        if (missing) for (Observer* o : observers.all) o->lanes_missing(w, t, missing);
        complete(w, group, t.wait_pc);
        changed = true;
    }
    return changed;
}

// ---- Blocks -----------------------------------------------------------------------------------

bool run_warp(Worker& w, Slot& slot, Warp& warp, const uint8_t* order) {
    bool any = false;
    for (;;) {
        bool changed = false, ready = false;
        for (uint32_t i = 0; i < warp.lanes; ++i) {
            const uint32_t l = order ? order[i] : i;
            if (l >= warp.lanes) continue;
            Thread& t = warp.threads[l];
            if (t.state != Thread::State::ready && t.state != Thread::State::fresh) continue;
            resume(w, slot, t);
            if (t.state != Thread::State::ready) changed = true;
        }
        for (Observer* o : observers.all) o->turn_ends(warp);
        if (warp.waiting && resolve(warp, false)) changed = ready = true;
        any |= changed;
        if (!changed || !ready) return any;
    }
}

void complete_barrier(Slot& slot) {
    Block& b = slot.block;
    const Thread* first = nullptr;
    const Thread* other = nullptr;
    uint32_t others = 0, count = 0;
    bool all = true, any = false;
    std::vector<const Thread*> exited;
    for (uint32_t i = 0; i < b.thread_count; ++i) {
        Thread& t = b.threads[i];
        if (t.state == Thread::State::barrier) {
            if (!first) first = &t;
            if (t.wait_pc != first->wait_pc) {
                if (!other) other = &t;
                ++others;
            }
            count += t.predicate != 0;
            all &= t.predicate != 0;
            any |= t.predicate != 0;
        } else if (t.state == Thread::State::exited) {
            exited.push_back(&t);
        }
    }
    if (!exited.empty()) for (Observer* o : observers.all) o->barrier_left_out(b, *first, exited);
    if (other) for (Observer* o : observers.all) o->barrier_diverged(b, *first, *other, others);
    for (Observer* o : observers.all) o->barrier(b);
    for (uint32_t i = 0; i < b.thread_count; ++i) {
        Thread& t = b.threads[i];
        if (t.state != Thread::State::barrier) continue;
        t.result = t.barrier_kind == 1 ? static_cast<int>(count) : t.barrier_kind == 2 ? all : any;
        t.state = Thread::State::ready;
    }
}

enum class Outcome { finished, waiting_for_blocks, moved };

// Lets every thread of a block run until it waits, ends or has used its turn.
Outcome advance(Worker& w, RunningLaunch& launch, Slot& slot) {
    Block& b = slot.block;
    uint8_t lanes[warp_size];
    std::vector<uint32_t> warps;
    for (;;) {
        if (slot.at_grid) {
            if (launch.generation.load() == slot.generation) return Outcome::waiting_for_blocks;
            slot.at_grid = false;
            for (uint32_t i = 0; i < b.thread_count; ++i) {
                if (b.threads[i].state == Thread::State::grid) b.threads[i].state = Thread::State::ready;
            }
        }
        bool changed = false;
        const uint8_t* order = nullptr;
        if (seed()) {
            thread_local std::mt19937_64 random(seed() * 7919 + b.slot);
            for (uint32_t i = 0; i < warp_size; ++i) lanes[i] = static_cast<uint8_t>(i);
            std::shuffle(lanes, lanes + warp_size, random);
            order = lanes;
            warps.resize(b.warps.size());
            for (uint32_t i = 0; i < warps.size(); ++i) warps[i] = i;
            std::shuffle(warps.begin(), warps.end(), random);
            for (const uint32_t i : warps) changed |= run_warp(w, slot, b.warps[i], order);
        } else {
            for (Warp& warp : b.warps) changed |= run_warp(w, slot, warp, order);
        }
        if (launch.aborted || slot.left == 0) return Outcome::finished;
        uint32_t at_barrier = 0, at_grid = 0, ready = 0;
        bool spun = false;
        for (uint32_t i = 0; i < b.thread_count; ++i) {
            const Thread& t = b.threads[i];
            at_barrier += t.state == Thread::State::barrier;
            at_grid += t.state == Thread::State::grid;
            ready += t.state == Thread::State::ready || t.state == Thread::State::fresh;
            spun |= t.state == Thread::State::ready && t.spins > 16;
        }
        if (at_barrier == slot.left) {
            complete_barrier(slot);
        } else if (at_grid == slot.left) {
            // Before being counted in: the last one to arrive starts the next generation.
            slot.generation = launch.generation.load();
            slot.at_grid = true;
            for (uint32_t i = 0; i < b.thread_count; ++i) {
                if (b.threads[i].state == Thread::State::grid) launch.grid_waiter = &b.threads[i];
            }
            launch.at_grid.fetch_add(1);
            return Outcome::moved;
        } else if (ready == 0) {
            bool resolved = false;
            for (Warp& warp : b.warps) if (warp.waiting) resolved |= resolve(warp, true);
            if (!resolved) complete_barrier(slot);  // some wait at it, the rest at the grid's
        } else if (!changed && spun) {
            return Outcome::waiting_for_blocks;
        }
    }
}

void end_block(Worker& w, RunningLaunch& launch, Slot& slot) {
    Block& b = slot.block;
    for (uint32_t i = 0; slot.left && i < b.thread_count; ++i) {  // left behind by an abort
        Thread& t = b.threads[i];
        if (t.gone()) continue;
        if (t.fiber) w.idle.push_back(static_cast<Fiber*>(t.fiber));
        t.fiber = nullptr;
        t.state = Thread::State::stopped;
    }
    for (Observer* o : observers.all) o->block_ends(b);
    if (!slot.output.empty()) {
        const std::lock_guard<std::mutex> hold(launch.mutex);
        launch.output.emplace_back(b.linear, std::move(slot.output));
        slot.output.clear();
    }
    launch.finished.fetch_add(1);
    launch.resident.fetch_sub(1);
    w.idle_slots.push_back(&slot);
}

// The grid's barrier opens when every block that has not ended waits at it.
bool open_grid_barrier(RunningLaunch& launch) {
    const std::lock_guard<std::mutex> hold(launch.mutex);
    const uint64_t waiting = launch.at_grid.load();
    if (waiting == 0 || waiting + launch.finished.load() != launch.blocks_run) return false;
    const uint64_t left_out = launch.finished.load();
    if (left_out) for (Observer* o : observers.all) o->grid_barrier_left_out(launch.seen, *launch.grid_waiter, left_out);
    for (Observer* o : observers.all) o->grid_synchronized(launch.seen);
    launch.at_grid = 0;
    launch.generation.fetch_add(1);
    return true;
}

void work(Worker& w, RunningLaunch& launch) {
    current_worker = &w;
    w.launch = &launch;
    w.host_thread = pthread_self();
    w.latest = nullptr;
    w.busy = true;
    struct Idle {
        Worker& w;
        ~Idle() { w.busy = false; }
    } idle{w};
    std::vector<Slot*> active;
    bool more = true;
    for (;;) {
        if (active.empty() || more) {
            more = false;
            if (!launch.aborted && launch.resident.fetch_add(1) < launch.most_resident) {
                const uint64_t turn = launch.next.fetch_add(1);
                if (turn < launch.blocks_run) {
                    const uint64_t every = launch.seen.blocks / launch.blocks_run, rest = launch.seen.blocks % launch.blocks_run;
                    // Of a sample, one block of each stretch, not always the same column of the grid.
                    const uint64_t linear = turn * every + std::min(turn, rest) + turn * 2654435761u % every;
                    Slot* slot = make_slot(w);
                    start_block(launch, *slot, linear);
                    active.push_back(slot);
                } else {
                    launch.resident.fetch_sub(1);
                    if (active.empty()) return;
                }
            } else {
                launch.resident.fetch_sub(1);
                if (active.empty()) {
                    if (launch.aborted || launch.next.load() >= launch.blocks_run) return;
                    sched_yield();
                    continue;
                }
            }
        }
        bool moved = false;
        for (size_t i = 0; i < active.size();) {
            const Outcome outcome = advance(w, launch, *active[i]);
            if (outcome == Outcome::finished) {
                end_block(w, launch, *active[i]);
                active.erase(active.begin() + static_cast<std::ptrdiff_t>(i));
                moved = true;
                continue;
            }
            moved |= outcome == Outcome::moved;
            ++i;
        }
        moved |= open_grid_barrier(launch);
        if (!moved && !active.empty()) {
            more = true;
            if (launch.next.load() >= launch.blocks_run) sched_yield();
        }
    }
}

Worker* new_worker() {
    Worker* made = new Worker;
    const std::lock_guard<std::mutex> hold(all_workers.mutex);
    all_workers.list.push_back(made);
    return made;
}

// Host threads beside the calling one.
class Pool {
public:
    explicit Pool(uint64_t workers) {
        for (uint64_t i = 1; i < workers; ++i) {
            std::thread([this] { serve(); }).detach();
        }
    }
    void run(RunningLaunch& launch, uint64_t helpers) {
        {
            const std::lock_guard<std::mutex> hold(mutex_);
            launch_ = &launch;
            wanted_ = helpers;
            running_ = helpers;
            ++number_;
        }
        if (helpers) start_.notify_all();
        work(mine_, launch);
        current_worker = nullptr;
        std::unique_lock<std::mutex> hold(mutex_);
        running_ -= wanted_;  // helpers that woke too late to take a block
        wanted_ = 0;
        done_.wait(hold, [this] { return running_ == 0; });
    }

private:
    void serve() {
        prepare_host_thread();
        Worker* worker = new_worker();
        uint64_t seen = 0;
        std::unique_lock<std::mutex> hold(mutex_);
        for (;;) {
            start_.wait(hold, [&] { return number_ != seen && wanted_ > 0; });
            seen = number_;
            --wanted_;
            RunningLaunch* launch = launch_;
            hold.unlock();
            work(*worker, *launch);
            hold.lock();
            if (--running_ == 0) done_.notify_all();
        }
    }
    std::mutex mutex_;
    std::condition_variable start_, done_;
    RunningLaunch* launch_ = nullptr;
    uint64_t wanted_ = 0, running_ = 0, number_ = 0;
    Worker& mine_ = *new_worker();
};

}  // namespace

uint64_t workers() {
    static const uint64_t count = std::max<uint64_t>(
        1, environment("OPWRIGHT_EMULATOR_WORKERS", std::thread::hardware_concurrency()));
    return count;
}

uint32_t slots() { return slots_made; }

void wait_here(Thread& t, Thread::State state, uintptr_t pc) {
    t.state = state;
    t.wait_pc = pc;
    t.last_pc = pc;
    if (state == Thread::State::warp) {
        ++t.warp->waiting;
        auto& operations = t.warp->operations;
        auto known = std::find_if(operations.begin(), operations.end(), [pc](const auto& o) { return o.pc == pc; });
        if (known == operations.end()) known = operations.insert(known, Warp::Operation{pc, {}});
        ++known->came[t.lane];
        for (Observer* o : observers.all) o->warp_operation(t, pc);
    }
    leave(*static_cast<Fiber*>(t.fiber), current_worker->home);
}

void stop_here(Thread& t) {
    t.state = Thread::State::stopped;
    t.block->faulted = true;
    leave(*static_cast<Fiber*>(t.fiber), current_worker->home);
    std::abort();  // nobody resumes a stopped thread
}

void give_way(Thread& t) { leave(*static_cast<Fiber*>(t.fiber), current_worker->home); }

void flush_output(RunningLaunch& launch) {
    std::sort(launch.output.begin(), launch.output.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [block, text] : launch.output) std::fwrite(text.data(), 1, text.size(), stdout);
    launch.output.clear();
}

void run(RunningLaunch& launch) {
    static Pool* const pool = new Pool(workers());
    const uint64_t helpers = std::min(workers() - 1, launch.blocks_run > 1 ? launch.blocks_run - 1 : 0);
    for (Observer* o : observers.all) o->launch_begins(launch.seen);
    pool->run(launch, helpers);
    for (Observer* o : observers.all) o->launch_ends(launch.seen);
    flush_output(launch);
}

}  // namespace opw::core
