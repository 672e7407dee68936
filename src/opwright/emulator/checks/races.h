// Two threads at the same memory, at least one of them writing, and nothing that orders them.
//
// Every word of memory remembers its last plain write, two plain reads and its last atomic access,
// each as one 64-bit record of who and when:
//
//   63..32 interval   26..31 step   16..25 thread   2..15 site   1 writes   0 atomic in its block only
//
// An interval is a stretch of one block between two barriers. Interval numbers are given out in
// runs of eight to one block, so a table tells whose an interval was. A step counts what orders
// threads within an interval: __syncwarp and fences. What a thread knows of the lanes of its warp
// is a clock for each; what it knows of other warps and blocks comes through atomics: a thread that
// passed a fence leaves, with its next atomic or volatile write, what it knew at the fence; whoever
// reads that place atomically afterwards knows it too. Nothing here depends on which of two
// unordered threads happened to come first.
#pragma once

#include <cstring>
#include <unordered_map>

#include "checks/seen.h"
#include "core/streams.h"

namespace opw::checks {

class Races final : public Observer {
public:
    Races() { owners_ = zeroed<uint32_t>(size_t{1} << 29); }

    void allocated(Allocation& a) override { a.shadow[shadow_races] = new Shadow(a.high - a.base()); }
    void freed(Allocation& a) override {
        delete static_cast<Shadow*>(a.shadow[shadow_races]);
        a.shadow[shadow_races] = nullptr;
    }
    void shared_appears(Block&, Allocation& a) override { a.shadow[shadow_races] = new Shadow(a.high - a.base()); }

    void launch_begins(Grid& launch) override {
        launch_ = &launch;
        begin_era();
        begins_ = era_;
        remember(launch);
        for (const Work& w : work_) {
            if (!Streams::before(w.grid.operation, launch.operation.clock)) era_ = std::min(era_, w.first);
        }
    }
    void copied(Allocation& a, uintptr_t address, size_t size, unsigned flags, const Grid& as) override {
        Shadow* const shadow = static_cast<Shadow*>(a.shadow[shadow_races]);
        if (!shadow) return;
        const Operation& operation = as.operation;
        const bool unordered = std::any_of(work_.begin(), work_.end(), [&](const Work& w) {
            return !Streams::before(w.grid.operation, operation.clock);
        });
        // What comes later must know of it where another stream, or the host, need not wait for it.
        const bool kept = !operation.waited && (streams.several() || a.host_may_touch());
        if (!unordered && !kept) return;
        const uint32_t number = numbers_.fetch_add(8);
        if (kept) remember(as, number);
        const uint64_t mine = uint64_t{number} << 32 | (flags & is_write ? 2 : 0);
        each_word(*shadow, a, address, size, [&](Cell& cell) {
            meet(cell, flags, [&](uint64_t record) {
                const Work* const w = work_of(record);
                if (!w || w->first == number || Streams::before(w->grid.operation, operation.clock)) return;
                across(*w, record, "race-between-launches", a, [&](Report& r) {
                    r.file = as.file;
                    r.line = as.line;
                    r.message = std::string(flags & is_write ? "written" : "read") + " by the call at {here}";
                });
            });
            if (kept) (flags & is_write ? cell.write : cell.read[0]) = mine;
        });
    }
    void host_accessed(Allocation& a, uintptr_t address, uint32_t size, unsigned flags, uintptr_t pc) override {
        Shadow* const shadow = static_cast<Shadow*>(a.shadow[shadow_races]);
        if (!shadow || work_.empty()) return;
        each_word(*shadow, a, address, size, [&](Cell& cell) {
            meet(cell, flags, [&](uint64_t record) {
                const Work* const w = work_of(record);
                if (!w || streams.host_knows(w->grid.operation)) return;
                across(*w, record, "race-with-host", a, [&](Report& r) {
                    r.pc = pc;
                    r.message = std::string(flags & is_write ? "written" : "read") + " by the host at {here}";
                });
            });
        });
    }
    // The grid's barrier orders everything before it.
    void grid_synchronized(Grid&) override {
        const uint32_t oldest = era_;
        begin_era();
        phase_ = era_;
        if (oldest < begins_) era_ = oldest;  // other streams' work is still there
        for (uint32_t i = 0; i < slots(); ++i) {
            if (!states_[i]) continue;
            BlockState& s = *states_[i];
            s.known.clear();
            s.next = s.end = 0;
            s.first = s.epoch = fresh(s);
            for (uint32_t j = 0; j < s.threads.size(); ++j) {
                s.threads[j].forget();
                s.threads[j].record = uint64_t{s.epoch} << 32 | uint64_t{j} << 16;
            }
        }
    }

    void block_begins(Block& b) override {
        BlockState& s = state(b);
        s.linear = static_cast<uint32_t>(b.linear);
        s.next = s.end = 0;
        s.first = s.epoch = fresh(s);
        s.known.clear();
        s.stepped = s.fences = false;
        s.parallel = b.launch->blocks > 1;
        if (s.threads.size() < b.thread_count) s.threads.resize(b.thread_count);
        for (uint32_t i = 0; i < b.thread_count; ++i) {
            ThreadState& t = s.threads[i];
            t.record = uint64_t{s.epoch} << 32 | uint64_t{i} << 16;
            t.forget();
            t.block = &s;
            b.threads[i].kept[thread_races] = &t;
        }
        for (auto& clocks : s.clocks) clocks.reset();
        s.clocks.resize(b.warps.size());
    }
    void block_ends(Block& b) override { settle(b); }
    void barrier(Block& b) override {
        BlockState& s = state(b);
        if (s.fences) share(s, 0, b.thread_count, ~0u);
        s.fences = false;
        s.epoch = fresh(s);
        for (uint32_t i = 0; i < b.thread_count; ++i) {
            ThreadState& t = s.threads[i];
            t.record = uint64_t{s.epoch} << 32 | uint64_t{i} << 16;
            acquire(t, false);
            for (const Knowledge& k : t.known) learn(s.known, k);
            t.known.clear();
        }
    }
    void warp_synchronized(Warp& w, uint32_t group, uintptr_t) override {
        BlockState& s = state(*w.block);
        auto& clocks = s.clocks[w.index];
        if (!clocks) clocks.reset(new Clocks());
        uint64_t joined[warp_size] = {};
        for (uint32_t rest = group; rest; rest &= rest - 1) {
            const int l = __builtin_ctz(rest);
            for (int j = 0; j < warp_size; ++j) joined[j] = std::max(joined[j], clocks->of[l][j]);
            joined[l] = std::max(joined[l], s.threads[w.index * warp_size + static_cast<uint32_t>(l)].record >> 26);
        }
        for (uint32_t rest = group; rest; rest &= rest - 1) {
            const int l = __builtin_ctz(rest);
            std::memcpy(clocks->of[l], joined, sizeof joined);
            step(s, s.threads[w.index * warp_size + static_cast<uint32_t>(l)]);
        }
        if (s.fences) share(s, w.index * warp_size, w.lanes, group);
        if (!used_.load(std::memory_order_relaxed)) return;
        std::vector<Knowledge> all;
        for (uint32_t rest = group; rest; rest &= rest - 1) {
            ThreadState& t = s.threads[w.index * warp_size + static_cast<uint32_t>(__builtin_ctz(rest))];
            acquire(t, false);
            for (const Knowledge& k : t.known) learn(all, k);
        }
        for (uint32_t rest = group; rest; rest &= rest - 1) s.threads[w.index * warp_size + static_cast<uint32_t>(__builtin_ctz(rest))].known = all;
    }
    void turn_ends(Warp& w) override {
        if (pending_.load(std::memory_order_relaxed) == 0) return;
        BlockState& s = state(*w.block);
        for (uint32_t l = 0; l < w.lanes; ++l) settle(s.threads[w.index * warp_size + l]);
    }
    void fence(Thread& t, Scope scope) override {
        BlockState& s = state(*t.block);
        ThreadState& me = s.threads[t.linear];
        me.fenced = true;
        me.fence_block_only = scope == Scope::block;
        me.fence_epoch = s.epoch;
        me.fence_clock = me.record >> 26;
        acquire(me, scope == Scope::block);
        me.fence_known = s.known;
        for (const Knowledge& k : me.known) learn(me.fence_known, k);
        if (scope != Scope::block) {
            me.device_clock = me.fence_clock;
            me.device_known = me.fence_known;
            me.unshared = s.fences = true;
        }
        step(s, me);
    }

    __attribute__((always_inline)) bool access(const Access& a) {
        if (!a.allocation) return true;
        Shadow* const shadow = static_cast<Shadow*>(a.allocation->shadow[shadow_races]);
        if (!shadow) return true;
        ThreadState& me = *static_cast<ThreadState*>(a.thread->kept[thread_races]);
        BlockState& s = *me.block;
        if (me.pending_size) settle(me);
        const bool shared = a.space == Space::shared;
        const unsigned flags = a.flags;
        // A volatile access to global memory is one access in some order with others of its kind. In
        // shared memory it is kept as a plain one, and `suspect` decides by whose it meets.
        const bool as_atomic = (flags & is_atomic) || ((flags & is_volatile) && !shared);
        const uint64_t mine = me.record | (a.site < 16384 ? uint64_t{a.site} << 2 : 0) | (flags & is_write ? 2 : 0) |
                              (flags & scope_block ? 1 : 0);
        const size_t at = a.address - a.allocation->base();
        const Look look{*this, s, me, a, shared, mine, s.parallel && !shared};
        if (flags & (is_atomic | is_volatile)) exchange_knowledge(a, s, me);
        if (__builtin_expect(a.size < 4 || shadow->bytes.load(std::memory_order_relaxed), 0)) {
            Cell* const bytes = shadow->by_byte();
            look.visit(shadow->words[at / 4], as_atomic, false);
            for (size_t i = 0; i < a.size; ++i) look.visit(bytes[at + i], as_atomic, true);
            for (size_t w = at / 4 + 1; w < (at + a.size + 3) / 4; ++w) look.visit(shadow->words[w], as_atomic, false);
            return true;
        }
        for (size_t w = at / 4, end = (at + a.size) / 4; w < end; ++w) look.visit(shadow->words[w], as_atomic, true);
        return true;
    }

private:
    struct Cell {
        uint64_t write, read[2], atomic;
    };

    // Words until somebody touches less than a word; from then on also bytes.
    struct Shadow {
        explicit Shadow(size_t bytes_) : size(bytes_), words(zeroed<Cell>((bytes_ + 3) / 4)) {}
        ~Shadow() {
            give_back(words, (size + 3) / 4);
            if (Cell* b = bytes.load()) give_back(b, size);
        }
        Cell* by_byte() {
            if (Cell* known = bytes.load(std::memory_order_acquire)) return known;
            Cell* made = zeroed<Cell>(size);
            Cell* none = nullptr;
            if (bytes.compare_exchange_strong(none, made)) return made;
            give_back(made, size);
            return none;
        }
        size_t size;
        Cell* words;
        std::atomic<Cell*> bytes{nullptr};
    };

    // One place in memory through which threads tell one another what is done.
    struct Channel;
    struct Knowledge {
        Channel* channel;
        uint32_t entries;  // of its log, from the beginning
        bool block_only;   // the fence that followed reaches the own block only
    };
    // What threads of a block, each by its own fence, had made visible to the whole device before a
    // barrier: any of them may tell of it afterwards. Clocks by thread, 0 where there was no fence.
    struct Fenced {
        std::vector<uint64_t> clocks;
        std::vector<Knowledge> known;
    };
    struct Entry {
        uint32_t block;
        uint32_t epoch;    // of the block: every thread's work in the intervals before it
        uint32_t thread;
        uint64_t clock;    // of the thread: its own work up to here
        bool block_only;
        std::vector<Knowledge> known;
        std::shared_ptr<const Fenced> others;
    };
    struct Channel {
        uintptr_t address;
        std::vector<Entry> log;
        std::unordered_map<uint32_t, std::vector<uint32_t>> by_block;
    };

    struct BlockState;
    struct Look;
    struct ThreadState {
        BlockState* block = nullptr;
        uint64_t record = 0;
        uintptr_t pending_address = 0;
        uint32_t pending_size = 0;
        int pending_number = 0;
        uint8_t pending_value[16] = {};
        bool fenced = false, fence_block_only = false;
        uint32_t fence_epoch = 0;
        uint64_t fence_clock = 0;
        std::vector<Knowledge> fence_known;
        uint64_t device_clock = 0;  // at its last fence of more than its block
        std::vector<Knowledge> device_known;
        bool unshared = false;      // no barrier since then
        std::shared_ptr<const Fenced> passed;
        std::vector<Knowledge> known;
        std::vector<Knowledge> heard;  // read, but not yet followed by a fence or barrier
        uintptr_t listening = 0;       // where it last read atomically

        void forget() {
            fenced = unshared = false;
            device_clock = listening = 0;
            passed.reset();
            fence_known.clear();
            device_known.clear();
            known.clear();
            heard.clear();
        }
    };
    struct Clocks {
        uint64_t of[warp_size][warp_size] = {};
    };
    struct BlockState {
        uint32_t linear = 0;
        uint32_t first = 0, epoch = 0;   // first interval of the block; of the time since its barrier
        uint32_t next = 0, end = 0;      // numbers left
        bool stepped = false;            // a thread has passed __syncwarp or a fence
        bool parallel = false;           // other blocks may run at the same time
        bool fences = false;             // of more than the block, since its barrier
        std::vector<ThreadState> threads;
        std::vector<std::unique_ptr<Clocks>> clocks;
        std::vector<Knowledge> known;
    };

    BlockState& state(const Block& b) {
        if (!states_[b.slot]) states_[b.slot] = new BlockState;
        return *states_[b.slot];
    }

    uint32_t fresh(BlockState& s) {
        if (s.next == s.end) {
            s.next = numbers_.fetch_add(8);
            s.end = s.next + 8;
            owners_[s.next >> 3] = s.linear;
        }
        return s.next++;
    }
    void step(BlockState& s, ThreadState& t) {
        s.stepped = true;
        const uint32_t steps = static_cast<uint32_t>(t.record >> 26) & 63;
        if (steps < 63) t.record += uint64_t{1} << 26;
        else t.record = uint64_t{fresh(s)} << 32 | (t.record & (uint64_t{1023} << 16));
    }
    void begin_era() {
        era_ = phase_ = numbers_.load();
        used_ = false;
        const std::lock_guard<std::mutex> hold(mutex_);
        channels_.clear();
    }

    // Of `count` threads from the first one, those in the mask (all, for a block) have met.
    static void share(BlockState& s, uint32_t first, uint32_t count, uint32_t mask) {
        const auto met = [&](uint32_t i) { return mask == ~0u || mask >> i & 1; };
        bool news = false;
        for (uint32_t i = 0; i < count; ++i) news |= met(i) && s.threads[first + i].unshared;
        if (!news) return;
        const auto all = std::make_shared<Fenced>();
        all->clocks.resize(s.threads.size());
        const Fenced* last = nullptr;
        for (uint32_t i = 0; i < count; ++i) {
            if (!met(i)) continue;
            ThreadState& t = s.threads[first + i];
            all->clocks[first + i] = std::max(all->clocks[first + i], t.device_clock);
            for (const Knowledge& k : t.device_known) learn(all->known, k);
            t.unshared = false;
            if (!t.passed || t.passed.get() == last) continue;
            last = t.passed.get();
            for (size_t j = 0; j < last->clocks.size(); ++j) all->clocks[j] = std::max(all->clocks[j], last->clocks[j]);
            for (const Knowledge& k : last->known) learn(all->known, k);
        }
        for (uint32_t i = 0; i < count; ++i) if (met(i)) s.threads[first + i].passed = all;
    }

    static void learn(std::vector<Knowledge>& known, const Knowledge& news) {
        for (Knowledge& k : known) {
            if (k.channel == news.channel && k.block_only == news.block_only) {
                k.entries = std::max(k.entries, news.entries);
                return;
            }
        }
        known.push_back(news);
    }

    // An atomic or volatile access passes on what was known at the last fence, and learns what others passed on.
    void exchange_knowledge(const Access& a, BlockState& s, ThreadState& me) {
        const bool gives = (me.fenced || me.passed) && (a.flags & is_write);
        if (me.listening && me.listening != a.address) listen(me);
        if (a.flags & is_read) me.listening = a.address;
        if (!gives && !used_.load(std::memory_order_relaxed)) return;
        const std::lock_guard<std::mutex> hold(mutex_);
        auto place = channels_.find(a.address);
        if (place == channels_.end()) {
            if (!gives) return;
            place = channels_.emplace(a.address, std::make_unique<Channel>()).first;
            place->second->address = a.address;
        }
        Channel& c = *place->second;
        if ((a.flags & is_read) && !c.log.empty()) learn(me.heard, {&c, static_cast<uint32_t>(c.log.size()), false});
        if (!gives) return;
        used_ = true;
        const uint32_t thread = a.thread->linear;
        if (!c.log.empty()) {
            const Entry& last = c.log.back();
            if (last.block == s.linear && last.thread == thread && last.clock == me.fence_clock && last.others == me.passed) return;
        }
        c.by_block[s.linear].push_back(static_cast<uint32_t>(c.log.size()));
        c.log.push_back({s.linear, me.fence_epoch, thread, me.fence_clock, me.fence_block_only, me.fence_known, me.passed});
    }

    // The value that an atomic read is about to deliver may be written, by another host thread, after
    // the read was seen here: what came with it is learned once the reader goes on.
    void listen(ThreadState& me) {
        if (!me.listening || !used_.load(std::memory_order_relaxed)) return;
        const std::lock_guard<std::mutex> hold(mutex_);
        const auto place = channels_.find(me.listening);
        if (place != channels_.end()) learn(me.heard, {place->second.get(), static_cast<uint32_t>(place->second->log.size()), false});
    }
    // A fence or barrier: what was heard before it is known behind it.
    void acquire(ThreadState& me, bool block_only) {
        listen(me);
        for (const Knowledge& k : me.heard) learn(me.known, {k.channel, k.entries, block_only});
        if (!block_only) me.heard.clear();
    }

    // Whether what somebody did is among the knowledge; `depth` bounds chains of messages.
    bool told(const std::vector<Knowledge>& known, uint64_t record, uint32_t owner, uint32_t reader, int depth,
              std::vector<std::pair<const Channel*, uint32_t>>& visited) const {
        const uint32_t interval = static_cast<uint32_t>(record >> 32), thread = static_cast<uint32_t>(record >> 16) & 1023;
        for (const Knowledge& k : known) {
            bool seen = false;
            for (auto& [channel, entries] : visited) {
                if (channel != k.channel) continue;
                seen = entries >= k.entries;
                if (!seen) entries = k.entries;
            }
            if (seen) continue;
            visited.emplace_back(k.channel, k.entries);
            const auto of_block = k.channel->by_block.find(owner);
            if (of_block != k.channel->by_block.end()) {
                for (const uint32_t i : of_block->second) {
                    if (i >= k.entries) break;
                    const Entry& e = k.channel->log[i];
                    if (e.others && !k.block_only && record >> 26 <= e.others->clocks[thread]) return true;
                    if ((e.block_only || k.block_only) && owner != reader) continue;
                    if (interval < e.epoch || (thread == e.thread && record >> 26 <= e.clock)) return true;
                }
            }
            if (depth == 0) continue;
            for (uint32_t i = 0; i < k.entries && i < k.channel->log.size(); ++i) {
                const Entry& e = k.channel->log[i];
                if (k.block_only && e.block != reader) continue;
                if (!e.known.empty() && told(e.known, record, owner, reader, depth - 1, visited)) return true;
                if (e.others && told(e.others->known, record, owner, reader, depth - 1, visited)) return true;
            }
        }
        return false;
    }

    bool told(BlockState& s, ThreadState& me, uint64_t record, uint32_t owner) {
        if (!used_.load(std::memory_order_relaxed)) return false;
        const std::lock_guard<std::mutex> hold(mutex_);
        std::vector<std::pair<const Channel*, uint32_t>> visited;
        return told(me.known, record, owner, s.linear, 64, visited) || told(s.known, record, owner, s.linear, 64, visited);
    }
    // Whether a message tells of it, read from this very place (which needs no fence) or from another.
    bool told_unfenced(const Look& look, uint64_t record, bool here) {
        if (!used_.load(std::memory_order_relaxed)) return false;
        listen(look.me);
        const std::lock_guard<std::mutex> hold(mutex_);
        std::vector<Knowledge> heard;
        for (const Knowledge& k : look.me.heard) if (!here || k.channel->address == look.a.address) heard.push_back(k);
        std::vector<std::pair<const Channel*, uint32_t>> visited;
        return told(heard, record, owners_[record >> 35], look.s.linear, 64, visited);
    }

    // Work given to streams: a launch or a copy, and the first of its intervals.
    struct Work {
        uint32_t first, last;
        Grid grid;
    };
    static constexpr size_t work_kept = 64;

    void remember(const Grid& grid) { remember(grid, begins_); }
    void remember(const Grid& grid, uint32_t first) {
        if (!work_.empty()) work_.back().last = std::min(work_.back().last, first - 1);
        const auto known = [](const Work& w) { return streams.host_knows(w.grid.operation); };
        work_.erase(std::remove_if(work_.begin(), work_.end(), known), work_.end());
        if (work_.size() == work_kept) work_.erase(work_.begin());
        work_.push_back({first, ~0u, grid});
    }
    // Whose a record is; null for what is ordered before everything that is still to come.
    const Work* work_of(uint64_t record) const {
        const uint32_t interval = static_cast<uint32_t>(record >> 32);
        const Work* found = nullptr;
        for (const Work& w : work_) if (w.first <= interval && interval <= w.last) found = &w;
        return found;
    }
    template <class Visit> static void each_word(Shadow& shadow, const Allocation& a, uintptr_t address, size_t size, const Visit& visit) {
        const size_t at = address - a.base();
        for (size_t w = at / 4; w < (at + size + 3) / 4; ++w) visit(shadow.words[w]);
        if (Cell* const bytes = shadow.bytes.load()) for (size_t i = at; i < at + size; ++i) visit(bytes[i]);
    }
    // Those of a cell's records that an access could race with.
    template <class Check> static void meet(const Cell& cell, unsigned flags, const Check& check) {
        if (cell.write) check(cell.write);
        if (cell.atomic && ((flags & is_write) || (cell.atomic & 2))) check(cell.atomic);
        if (flags & is_write) for (const uint64_t r : cell.read) if (r) check(r);
    }
    template <class Say> void across(const Work& w, uint64_t record, const char* kind, const Allocation& a, const Say& say) {
        Report r;
        r.kind = kind;
        r.thread = "host";
        r.other_pc = site(static_cast<uint32_t>(record >> 2) & 16383).pc;
        say(r);
        r.message = a.name + " is " + r.message + " and " + (record & 2 ? "written" : "read") + " by " + whose(w, record) +
                    (r.other_pc ? ", at {there}" : "") + ": nothing orders the two (cudaDeviceSynchronize, or an event, would)";
        r.details = {{"array", a.name}};
        report(r);
    }
    std::string whose(const Work& w, uint64_t record) const {
        std::string text = w.grid.kernel + " of line " + std::to_string(w.grid.line);  // of the launch or call
        if (record >> 2 & 16383) text = describe(w.grid, owners_[record >> 35], static_cast<uint32_t>(record >> 16) & 1023) + " of " + text;
        return text;
    }

    // One access against the records of one cell.
    struct Look {
        Races& races;
        BlockState& s;
        ThreadState& me;
        const Access& a;
        bool shared;
        uint64_t mine;
        bool parallel;  // other host threads may touch the cell

        static bool same_thread_and_time(uint64_t record, uint64_t other) { return (record ^ other) >> 16 == 0; }

        bool own_block(uint32_t interval) const {
            return shared || (interval >= s.first && races.owners_[interval >> 3] == s.linear);
        }

        // The common case, without following any message.
        __attribute__((always_inline)) bool long_past(uint64_t record) const {
            return static_cast<uint32_t>(record >> 32) < (shared ? s.epoch : races.era_);
        }
        bool ordered(uint64_t record) const {
            const uint32_t interval = static_cast<uint32_t>(record >> 32);
            if (shared ? interval < s.epoch : interval < races.era_) return true;
            if (!shared && interval < races.phase_) {
                if (interval >= races.begins_) return true;  // before the grid's barrier
                const Work* const w = races.work_of(record);
                return !w || Streams::before(w->grid.operation, races.launch_->operation.clock);
            }
            return !own_block(interval) ? races.told(s, me, record, races.owners_[interval >> 3]) : ordered_in_block(record, interval);
        }
        bool ordered_in_block(uint64_t record, uint32_t interval) const {
            if (interval < s.epoch) return true;
            const uint32_t thread = static_cast<uint32_t>(record >> 16) & 1023, self = a.thread->linear;
            if (thread == self) return true;
            if (thread / warp_size == self / warp_size) {
                const auto& clocks = s.clocks[self / warp_size];
                if (clocks && record >> 26 <= clocks->of[self % warp_size][thread % warp_size]) return true;
            }
            return races.told(s, me, record, s.linear);
        }

        static uint64_t load(const uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_RELAXED); }
        void store(uint64_t& word) const {
            // A full barrier, so that of two host threads at one cell at least one sees the other.
            if (parallel) __atomic_exchange_n(&word, mine, __ATOMIC_SEQ_CST);
            else __atomic_store_n(&word, mine, __ATOMIC_RELAXED);
        }

        __attribute__((always_inline)) void check(uint64_t record) const {
            if (!long_past(record) && !same_thread_and_time(record, mine)) suspect(record);
        }
        __attribute__((noinline)) void suspect(uint64_t record) const {
            if (!excused(record) && !ordered(record) && !races.told_unfenced(*this, record, true)) races.found(*this, record);
        }
        // Single accesses to shared memory by two warps, as flags between warps are. Between lanes of one
        // warp, two volatile ones are what warp-synchronous code without __syncwarp got wrong.
        bool excused(uint64_t record) const {
            constexpr unsigned single = is_atomic | is_volatile;
            if (!shared || !(a.flags & single)) return false;
            const unsigned theirs = site(static_cast<uint32_t>(record >> 2) & 16383).flags;
            if (!(theirs & single)) return false;
            return (record ^ mine) >> 21 & 31 || ((a.flags | theirs) & is_atomic);
        }

        __attribute__((always_inline)) void visit(Cell& cell, bool as_atomic, bool keep) const {
            if (as_atomic) return atomic(cell, keep);
            if (!(a.flags & is_write)) return read(cell, keep);
            if (keep && !same_thread_and_time(load(cell.write), mine)) {
                const uint64_t before = load(cell.write);
                store(cell.write);
                check(before);
            } else {
                check(load(cell.write));
                if (keep) __atomic_store_n(&cell.write, mine, __ATOMIC_RELAXED);
            }
            if (const uint64_t r = load(cell.read[0])) {
                check(r);
                check(load(cell.read[1]));
            }
            if (const uint64_t r = load(cell.atomic)) check(r);
        }

        __attribute__((always_inline)) void read(Cell& cell, bool keep) const {
            if (keep) {
                const uint64_t first = load(cell.read[0]);
                if (long_past(first)) {
                    store(cell.read[0]);
                } else if (!same_thread_and_time(first, mine)) {
                    const uint64_t second = load(cell.read[1]);
                    if (long_past(second)) store(cell.read[1]);
                    else if (!same_thread_and_time(second, mine)) keep_reader(cell, first, second);
                }
            }
            check(load(cell.write));
            const uint64_t other = load(cell.atomic);
            if (other & 2) check(other);
        }
        __attribute__((noinline)) void keep_reader(Cell& cell, uint64_t first, uint64_t second) const {
            if (closer(first, second)) return store(cell.read[1]);
            // Without messages inside a block, whatever is of this interval is unordered.
            if (shared && !s.stepped && !races.used_.load(std::memory_order_relaxed)) return;
            if (ordered(first)) return store(cell.read[0]);
            if (ordered(second)) store(cell.read[1]);
        }

        // Whether the two readers kept are of one warp (or block) and this one is of another: keeping
        // the most distant ones means that a later writer is unordered with one of them if with any.
        bool closer(uint64_t first, uint64_t second) const {
            if (!shared) {
                const uint32_t f = races.owners_[first >> 35], g = races.owners_[second >> 35];
                if (f != g) return false;
                if (f != s.linear) return true;
            }
            return (first >> 21 & 31) == (second >> 21 & 31) && (first >> 21 & 31) != (mine >> 21 & 31);
        }

        __attribute__((noinline)) void atomic(Cell& cell, bool keep) const {
            if (a.flags & is_compare) {
                // A plain read before the compare-and-swap that confirms it is how such loops begin.
                for (const uint64_t& r : cell.read) {
                    const uint64_t record = load(r);
                    if (same_thread_and_time(record, mine)) races.confirm(static_cast<uint32_t>(record >> 2) & 16383);
                }
            }
            const uint64_t before = load(cell.atomic);
            if (keep && (before == 0 || (mine & 2) || !(before & 2) || ordered(before))) store(cell.atomic);
            check(load(cell.write));
            if (mine & 2) {
                check(load(cell.read[0]));
                check(load(cell.read[1]));
            }
            if (before && ((before | mine) & 2)) {
                // Atomics of one block's scope are plain accesses to every other block.
                if (((before | mine) & 1) && !own_block(static_cast<uint32_t>(before >> 32))) check(before);
            }
        }
    };

    __attribute__((noinline)) void found(const Look& look, uint64_t record) {
        const Access& a = look.a;
        const uint32_t other = static_cast<uint32_t>(record >> 2) & 16383;
        const bool other_block = !look.own_block(static_cast<uint32_t>(record >> 32));
        const Site& theirs = site(other);
        // The pair is named in one order, whichever came first: the write, else the lower address.
        const bool i_write = a.flags & is_write, they_write = theirs.flags & is_write;
        const bool swap = i_write != they_write ? they_write : theirs.pc < a.thread->last_pc;
        const Work* const earlier = !look.shared && static_cast<uint32_t>(record >> 32) < begins_ ? work_of(record) : nullptr;
        const uint32_t kind = look.shared ? 2 : earlier ? 5 : other_block ? 4 : 3;
        const int number = count_finding(kind, swap ? other : a.site, swap ? a.site : other, [&] {
            const std::string me = describe(*a.thread);
            const std::string them = earlier ? whose(*earlier, record) : describe(*launch_, owners_[record >> 35], static_cast<uint32_t>(record >> 16) & 1023);
            Report r;
            r.kind = look.shared ? "race-shared" : earlier ? "race-between-launches" : other_block ? "race-between-blocks" : "race-global";
            r.pc = swap ? theirs.pc : a.thread->last_pc;
            r.other_pc = swap ? a.thread->last_pc : theirs.pc;
            r.thread = swap ? them : me;
            r.other_thread = swap ? me : them;
            const std::string mine = operation(a.flags, a.size), other_operation = operation(theirs.flags, theirs.size);
            r.message = (swap ? other_operation : mine) + " at {here} by " + r.thread + " and " + (swap ? mine : other_operation) +
                        " at {there} by " + r.other_thread + ", both in " + a.allocation->name + " at byte " +
                        std::to_string(a.address - a.allocation->low) + ": " +
                        (earlier ? "nothing orders the two streams (an event or a synchronisation would)"
                         : told_unfenced(look, record, false) ? "the message that orders them was read, but no __threadfence() came after that"
                         : other_block ? "nothing orders the two blocks" : "no barrier between them");
            const std::string order = std::string(i_write ? "write" : "read") + "-after-" + (they_write ? "write" : "read");
            r.details = {{"array", a.allocation->name}, {"order", order}};
            if (i_write != they_write && ((i_write ? a.flags : theirs.flags) & is_atomic)) r.details.emplace_back("atomic_write", "yes");
            return r;
        });
        if (i_write && they_write && !(a.flags & is_atomic) && a.size <= 16) {
            // Compared with what is there once this write has been made.
            if (look.me.pending_size == 0) pending_.fetch_add(1);
            look.me.pending_address = a.address;
            look.me.pending_size = a.size;
            look.me.pending_number = number;
            std::memcpy(look.me.pending_value, reinterpret_cast<const void*>(a.address), a.size);
        }
    }

    void confirm(uint32_t number) {
        if (confirmed_[number].exchange(true, std::memory_order_relaxed)) return;
        write_line("{\"confirmed_read\":" + std::to_string(site(number).pc) + "}");
    }

    void settle(ThreadState& t) {
        if (!t.pending_size) return;
        const bool same = std::memcmp(t.pending_value, reinterpret_cast<const void*>(t.pending_address), t.pending_size) == 0;
        t.pending_size = 0;
        pending_.fetch_sub(1);
        if (same) report_same_value(t.pending_number);
    }
    void settle(Block& b) {
        BlockState& s = state(b);
        for (uint32_t i = 0; i < b.thread_count; ++i) settle(s.threads[i]);
    }

    Grid* launch_ = nullptr;
    uint32_t* owners_ = nullptr;
    std::atomic<uint32_t> numbers_{8};
    uint32_t era_ = 8;     // intervals before it are ordered before everything that runs
    uint32_t begins_ = 8;  // first interval of the launch; of its time since the grid's barrier:
    uint32_t phase_ = 8;
    std::vector<Work> work_;  // what the host has not waited for, oldest first
    std::atomic<bool> used_{false};
    std::atomic<int> pending_{0};
    std::atomic<bool> confirmed_[16384] = {};
    std::mutex mutex_;
    std::unordered_map<uintptr_t, std::unique_ptr<Channel>> channels_;
    BlockState** states_ = zeroed<BlockState*>(1 << 19);
};

}  // namespace opw::checks
