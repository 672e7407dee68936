// What each memory instruction cost, counted as a profiler of the hardware counts it.
//
// Lanes run one after another here, so each lane's accesses are logged, and the logs of a warp are
// merged afterwards as the hardware would have issued them: of the lanes' next accesses, those at
// the lowest address in the program go first, all lanes at that address together. In code laid out
// in source order this brings lanes together again where their paths meet. Conditions are logged as
// accesses are: a branch is divergent when the lanes that come to it together go different ways.
#pragma once

#include <map>
#include <set>
#include <unordered_map>

#include "checks/seen.h"

namespace opw::checks {

struct Cost {
    uint64_t requests = 0, sectors = 0, wavefronts = 0, ideal = 0, lanes = 0, bytes = 0, divergent = 0, contention = 0;
    bool known = false;
    std::string array;
    Space space = Space::global;

    void add(const Cost& o) {
        requests += o.requests;
        sectors += o.sectors;
        wavefronts += o.wavefronts;
        ideal += o.ideal;
        lanes += o.lanes;
        bytes += o.bytes;
        divergent += o.divergent;
        contention += o.contention;
    }
};

class Counters final : public Observer {
public:
    void block_begins(Block& b) override {
        if (!states_[b.slot]) states_[b.slot] = new State;
        State& s = *states_[b.slot];
        if (s.launch != b.launch->number) {
            s.launch = b.launch->number;
            s.costs.assign(64, Cost());
        }
        s.warps.resize(std::max(s.warps.size(), b.warps.size()));
        for (WarpLog& w : s.warps) {
            for (auto& lane : w.lanes) lane.clear();
        }
        for (uint32_t i = 0; i < b.thread_count; ++i) b.threads[i].kept[thread_counters] = &s.warps[i / warp_size].lanes[i % warp_size];
    }
    __attribute__((always_inline)) bool access(const Access& a) {
        if (a.space == Space::constant || !a.allocation) return true;
        if (a.space == Space::local) return local(a);
        static_cast<LaneLog*>(a.thread->kept[thread_counters])->push(uint64_t{a.site} << 48 | (a.address & address_mask));
        return true;
    }
    void branched(Thread& t, uintptr_t pc, bool taken) override {
        static_cast<LaneLog*>(t.kept[thread_counters])->push(uint64_t{site_at(pc, is_branch, 0)} << 48 | taken);
    }
    void warp_operation(Thread& t, uintptr_t pc) override {
        State& s = *states_[t.block->slot];
        const uint32_t number = site_at(pc, 0, 0);
        s.warps[t.linear / warp_size].lanes[t.lane].push(uint64_t{number} << 48);
    }
    void turn_ends(Warp& w) override { merge(w); }
    void launch_ends(Grid& launch) override {
        for (uint32_t i = 0; i < slots(); ++i) {
            State* s = states_[i];
            if (!s || s->launch != launch.number) continue;
            for (uint32_t number = 0; number < s->costs.size(); ++number) {
                const Cost& c = s->costs[number];
                if (!c.requests) continue;
                totals_[{launch.kernel, number, c.space, c.array}].add(c);
            }
        }
    }
    void finished() override {
        for (const auto& [key, c] : totals_) {
            const auto& [kernel, number, space, array] = key;
            const Site& where = site(number);
            const char* operation = where.flags & is_branch ? "branch" : where.flags & is_atomic ? "atomic" : where.flags & is_write ? "store" : "load";
            write_line("{\"counter\":1,\"kernel\":" + json_quoted(kernel) + ",\"pc\":" + std::to_string(where.pc) +
                       ",\"space\":\"" + (space == Space::shared ? "shared" : space == Space::local ? "local" : space == Space::other ? "control" : "global") + "\",\"operation\":\"" + operation +
                       "\",\"array\":" + json_quoted(array) + ",\"requests\":" + std::to_string(c.requests) +
                       ",\"sectors\":" + std::to_string(c.sectors) + ",\"wavefronts\":" + std::to_string(c.wavefronts) +
                       ",\"ideal\":" + std::to_string(c.ideal) + ",\"lanes\":" + std::to_string(c.lanes) +
                       ",\"bytes_used\":" + std::to_string(c.bytes) + ",\"divergent\":" + std::to_string(c.divergent) +
                       ",\"contention\":" + std::to_string(c.contention) + "}");
        }
    }

private:
    static constexpr uint64_t address_mask = (uint64_t{1} << 48) - 1;

    struct LaneLog {
        std::vector<uint64_t> events;
        size_t head = 0;
        bool empty() const { return head == events.size(); }
        uint64_t front() const { return events[head]; }
        void push(uint64_t event) { events.push_back(event); }
        void pop() {
            if (++head == events.size()) clear();
        }
        void clear() {
            events.clear();
            head = 0;
        }
    };
    struct WarpLog {
        LaneLog lanes[warp_size];
    };
    struct State {
        uint64_t launch = 0;
        std::vector<Cost> costs;
        std::vector<WarpLog> warps;
    };

    static Cost& cost_of(State& s, uint32_t number) {
        if (number >= s.costs.size()) s.costs.resize(number + 64);
        return s.costs[number];
    }

    // Local memory lies word by word: the n-th words of a warp's lanes are neighbours. The array is
    // gone when the logs are merged, so what is kept is where in it the access was.
    bool local(const Access& a) {
        if (!a.allocation->indexed) return true;
        Cost& cost = cost_of(*states_[a.thread->block->slot], a.site);
        if (!cost.known) {
            cost.known = true;
            cost.array = a.allocation->name;
            cost.space = Space::local;
        }
        static_cast<LaneLog*>(a.thread->kept[thread_counters])->push(uint64_t{a.site} << 48 | (a.address - a.allocation->low));
        return true;
    }

    void merge(Warp& w) {
        State& s = *states_[w.block->slot];
        WarpLog& log = s.warps[w.index];
        uint32_t filled = 0;
        bool unknown = false;  // whether a lane's next access is still to come
        const auto look = [&](uint32_t l) {
            const Thread& t = w.threads[l];
            if (!log.lanes[l].empty()) filled |= 1u << l;
            else unknown |= t.state == Thread::State::ready || t.state == Thread::State::fresh;
        };
        for (uint32_t l = 0; l < w.lanes; ++l) look(l);
        uint64_t head[warp_size];
        for (uint32_t rest = filled; rest; rest &= rest - 1) head[__builtin_ctz(rest)] = log.lanes[__builtin_ctz(rest)].front();
        uint64_t addresses[warp_size];
        uint8_t lanes[warp_size];
        while (filled && !unknown) {
            const uint64_t first = head[__builtin_ctz(filled)] >> 48;
            uint32_t number = static_cast<uint32_t>(first);
            uint64_t differ = 0;
            for (uint32_t rest = filled; rest; rest &= rest - 1) differ |= (head[__builtin_ctz(rest)] >> 48) ^ first;
            if (differ) {
                for (uint32_t rest = filled; rest; rest &= rest - 1) {
                    const uint32_t other = static_cast<uint32_t>(head[__builtin_ctz(rest)] >> 48);
                    if (other != number && site(other).pc < site(number).pc) number = other;
                }
            }
            uint32_t group = 0;
            int count = 0;
            for (uint32_t rest = filled; rest; rest &= rest - 1) {
                const int l = __builtin_ctz(rest);
                if (head[l] >> 48 != number) continue;
                group |= 1u << l;
                addresses[count] = head[l] & address_mask;
                lanes[count++] = static_cast<uint8_t>(l);
            }
            for (int i = 0; i < count; ++i) {
                LaneLog& lane = log.lanes[lanes[i]];
                lane.pop();
                if (lane.empty()) {
                    filled &= ~(1u << lanes[i]);
                    look(lanes[i]);
                } else {
                    head[lanes[i]] = lane.front();
                }
            }
            const Site& where = site(number);
            if (!where.flags) continue;
            Cost& cost = cost_of(s, number);
            if (where.flags & is_branch) {
                cost.space = Space::other;
                cost.requests += 1;
                cost.lanes += static_cast<uint64_t>(count);
                cost.divergent += std::any_of(addresses, addresses + count, [&](uint64_t way) { return way != addresses[0]; });
                continue;
            }
            if (!cost.known) {
                const Access first_lane = classify(w.threads[lanes[0]], addresses[0], where.size, where.flags, number);
                cost.known = true;
                cost.array = first_lane.allocation->name;
                cost.space = first_lane.space;
            }
            if (cost.space == Space::local) account_local(cost, where, addresses, lanes, count);
            else account(cost, where, addresses, lanes, count);
        }
    }

    static void account(Cost& c, const Site& where, const uint64_t* a, const uint8_t* lanes, int n) {
        const uint64_t size = where.size;
        c.requests += 1;
        c.lanes += static_cast<uint64_t>(n);
        uint64_t uniform = 0, apart = 0;
        for (int i = 1; i < n; ++i) {
            uniform |= a[i] ^ a[0];
            apart |= a[i] ^ (a[0] + static_cast<uint64_t>(i) * size);
        }
        const bool same = uniform == 0, sequential = apart == 0;
        uint64_t distinct = same ? 1 : static_cast<uint64_t>(n);
        uint64_t sorted[warp_size];
        if (!same && !sequential) {
            std::copy(a, a + n, sorted);
            if (!std::is_sorted(sorted, sorted + n)) std::sort(sorted, sorted + n);
            distinct = static_cast<uint64_t>(std::unique(sorted, sorted + n) - sorted);
        }
        c.bytes += distinct * size;
        if (where.flags & is_atomic) {
            uint64_t most = same ? static_cast<uint64_t>(n) : 1;
            if (!same && distinct < static_cast<uint64_t>(n)) {
                for (uint64_t d = 0; d < distinct; ++d) {
                    most = std::max(most, static_cast<uint64_t>(std::count(a, a + n, sorted[d])));
                }
            }
            c.contention += most;
        }
        if (c.space == Space::shared) {
            const uint64_t phases = same || size <= 4 ? 1 : phases_of(lanes, n, size);
            c.ideal += phases;
            c.wavefronts += same || (sequential && size <= 4) ? phases : wavefronts(a, lanes, n, size);
            return;
        }
        c.ideal += (distinct * size + 31) / 32;
        if (same) {
            c.sectors += (a[0] + size - 1) / 32 - a[0] / 32 + 1;
        } else if (sequential) {
            c.sectors += (a[0] + static_cast<uint64_t>(n) * size - 1) / 32 - a[0] / 32 + 1;
        } else {
            uint64_t last = ~uint64_t{0};
            for (uint64_t i = 0; i < distinct; ++i) {
                for (uint64_t sector = sorted[i] / 32; sector <= (sorted[i] + size - 1) / 32; ++sector) {
                    if (sector != last) ++c.sectors;
                    last = sector;
                }
            }
        }
    }

    static void account_local(Cost& c, const Site& where, const uint64_t* offsets, const uint8_t* lanes, int n) {
        const uint64_t size = where.size, words = (size + 3) / 4;
        c.requests += 1;
        c.lanes += static_cast<uint64_t>(n);
        c.bytes += static_cast<uint64_t>(n) * size;
        std::set<uint64_t> sectors;
        for (int i = 0; i < n; ++i) {
            for (uint64_t word = offsets[i] / 4; word < offsets[i] / 4 + words; ++word) sectors.insert(word * 4 + lanes[i] / 8);
        }
        c.sectors += sectors.size();
        c.ideal += words * ((static_cast<uint64_t>(n) + 7) / 8);
    }

    // 8 bytes a lane take the lanes in halves of the warp, 16 bytes in quarters.
    static uint64_t phases_of(const uint8_t* lanes, int n, uint64_t size) {
        const unsigned width = size == 8 ? 16 : 8;
        uint32_t seen = 0;
        for (int i = 0; i < n; ++i) seen |= 1u << (lanes[i] / width);
        return static_cast<uint64_t>(__builtin_popcount(seen));
    }

    // The passes a request takes: in each, every one of the 32 banks serves one word of 4 bytes.
    static uint64_t wavefronts(const uint64_t* a, const uint8_t* lanes, int n, uint64_t size) {
        const unsigned width = size <= 4 ? 32 : size == 8 ? 16 : 8;
        uint64_t total = 0;
        for (int begin = 0; begin < n;) {
            int end = begin;
            while (end < n && lanes[end] / width == lanes[begin] / width) ++end;
            uint64_t words[warp_size][warp_size];
            uint8_t used[warp_size] = {};
            uint8_t most = 1;
            for (int i = begin; i < end; ++i) {
                for (uint64_t word = a[i] / 4; word <= (a[i] + size - 1) / 4; ++word) {
                    const unsigned bank = word % warp_size;
                    bool known = false;
                    for (unsigned k = 0; k < used[bank]; ++k) known |= words[bank][k] == word;
                    if (known) continue;
                    words[bank][used[bank]++] = word;
                    most = std::max(most, used[bank]);
                }
            }
            total += most;
            begin = end;
        }
        return total;
    }

    State** states_ = zeroed<State*>(1 << 19);
    std::map<std::tuple<std::string, uint32_t, Space, std::string>, Cost> totals_;
};

}  // namespace opw::checks
