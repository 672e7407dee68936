// Barriers and warp functions that not everybody reaches who should.
#pragma once

#include "checks/seen.h"

namespace opw::checks {

class Synchronization final : public Observer {
public:
    void barrier_left_out(Block& b, const Thread& waiting, const std::vector<const Thread*>& exited) override {
        // A thread that ended is missing at every later barrier; the first of each line tells it.
        Report r;
        r.kind = "barrier-not-reached";
        r.pc = waiting.wait_pc;
        r.thread = describe(*exited.front());
        r.message = "barrier not reached by " + std::to_string(exited.size()) + " threads of block (" + std::to_string(b.index.x) +
                    "," + std::to_string(b.index.y) + "," + std::to_string(b.index.z) + "), which had ended: the first is " +
                    describe(*exited.front());
        r.details = {{"threads", std::to_string(exited.size())}};
        r.after = b.diverged;
        report(r);
    }
    void barrier_diverged(Block& b, const Thread& first, const Thread& other, uint32_t others) override {
        Report r;
        r.kind = "barrier-divergence";
        r.pc = std::min(first.wait_pc, other.wait_pc);
        r.other_pc = std::max(first.wait_pc, other.wait_pc);
        r.thread = describe(first.wait_pc < other.wait_pc ? first : other);
        r.other_thread = describe(first.wait_pc < other.wait_pc ? other : first);
        r.message = "threads of one block wait at two barriers, {here} and {there}: " + r.thread + " at the one, " + r.other_thread +
                    " at the other (" + std::to_string(others) + " of " + std::to_string(b.thread_count) + " threads differ)";
        r.after = b.diverged;
        b.diverged = report(r);
    }
    void lane_foreign(const Thread& t, uint32_t mask, uintptr_t pc) override {
        Report r;
        r.kind = "lane-not-in-mask";
        r.pc = pc;
        r.thread = describe(t);
        r.message = "lane " + std::to_string(t.lane) + " is not in the mask " + hexadecimal(mask) + " that it names";
        r.details = {{"lane", std::to_string(t.lane)}, {"mask", hexadecimal(mask)}};
        report(r);
    }
    void source_silent(const Thread& t, uint32_t source, uintptr_t pc) override {
        if (t.block->faulted) return;
        Report r;
        r.kind = "inactive-source-lane";
        r.pc = pc;
        r.thread = describe(t);
        r.message = "lane " + std::to_string(t.lane) + " shuffles from lane " + std::to_string(source) +
                    ", which takes no part: what it gets is undefined (mask " + hexadecimal(t.mask) + ")";
        r.details = {{"lane", std::to_string(t.lane)}, {"source", std::to_string(source)}, {"mask", hexadecimal(t.mask)}};
        report(r);
    }
    void lanes_missing(Warp&, const Thread& t, uint32_t missing) override {
        Report r;
        r.kind = "lanes-missing";
        r.pc = t.wait_pc;
        r.thread = describe(t);
        r.message = "lanes " + lanes(missing) + " are in the mask " + hexadecimal(t.mask) + " but never come: this warp would hang";
        r.details = {{"lanes", lanes(missing)}, {"mask", hexadecimal(t.mask)}};
        report(r);
    }
    void grid_barrier_left_out(Grid&, const Thread& t, uint64_t blocks) override {
        Report r;
        r.kind = "grid-barrier-not-reached";
        r.pc = t.wait_pc;
        r.thread = describe(t);
        r.message = "grid-wide barrier not reached by " + std::to_string(blocks) + " blocks, which had ended";
        report(r);
    }

private:
    static std::string hexadecimal(uint32_t mask) {
        char text[16];
        std::snprintf(text, sizeof text, "0x%08x", mask);
        return text;
    }
    static std::string lanes(uint32_t mask) {
        std::string text;
        for (int l = 0; l < warp_size;) {
            if (!(mask >> l & 1)) {
                ++l;
                continue;
            }
            int end = l;
            while (end + 1 < warp_size && (mask >> (end + 1) & 1)) ++end;
            text += (text.empty() ? "" : ", ") + std::to_string(l) + (end > l ? "-" + std::to_string(end) : "");
            l = end + 1;
        }
        return text;
    }
};

}  // namespace opw::checks
