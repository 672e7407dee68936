// Findings on their way to the driver: one line of JSON each, written the moment it is first found,
// so that nothing is lost when the program ends badly; counts follow at the end.
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <tuple>

#include "hooks.h"

namespace opw::core {

namespace {

struct Tally {
    std::atomic<uint64_t> count{0};
    std::atomic<uint64_t> same{0};
};

struct Reports {
    std::mutex mutex;
    std::map<std::tuple<std::string, uintptr_t, uintptr_t, std::string, int, int>, int> numbers;
    std::vector<Tally*> tallies;
    int descriptor = -1;
    int from = 0;  // numbers of findings begin here
    Reports() {
        if (const char* text = std::getenv("OPWRIGHT_EMULATOR_FD")) descriptor = std::atoi(text);
    }
};
Reports& reports() {
    static Reports* const all = new Reports;  // outlives every other static object
    return *all;
}

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
            out += escape;
        } else {
            out += c;
        }
    }
    return out + '"';
}

}  // namespace

void write_line(const std::string& line) {
    const int descriptor = reports().descriptor;
    if (descriptor < 0) return;
    const std::string text = line + "\n";
    size_t done = 0;
    while (done < text.size()) {
        const ssize_t n = write(descriptor, text.data() + done, text.size() - done);
        if (n <= 0) return;
        done += static_cast<size_t>(n);
    }
}

int report(const Report& r, uint64_t count) {
    Reports& all = reports();
    const std::lock_guard<std::mutex> hold(all.mutex);
    const auto key = std::make_tuple(std::string(r.kind), r.pc, r.other_pc, r.file, r.line, r.after);
    const auto [place, fresh] = all.numbers.emplace(key, static_cast<int>(all.tallies.size()));
    if (fresh) {
        all.tallies.push_back(new Tally);
        std::string line = "{\"finding\":" + std::to_string(all.from + place->second) + ",\"kind\":" + quoted(r.kind) +
                           ",\"pc\":" + std::to_string(r.pc) + ",\"other_pc\":" + std::to_string(r.other_pc) +
                           ",\"file\":" + quoted(r.file) + ",\"line\":" + std::to_string(r.line) +
                           ",\"after\":" + std::to_string(r.after) + ",\"message\":" + quoted(r.message) + ",\"thread\":" + quoted(r.thread) +
                           ",\"other_thread\":" + quoted(r.other_thread) + ",\"details\":{";
        bool first = true;
        for (const auto& [name, value] : r.details) {
            line += (first ? "" : ",") + quoted(name) + ":" + quoted(value);
            first = false;
        }
        write_line(line + "}}");
    }
    all.tallies[static_cast<size_t>(place->second)]->count += count;
    return place->second;
}

void report_again(int number) {
    Reports& all = reports();
    const std::lock_guard<std::mutex> hold(all.mutex);
    ++all.tallies[static_cast<size_t>(number)]->count;
}

void report_same_value(int number) {
    Reports& all = reports();
    const std::lock_guard<std::mutex> hold(all.mutex);
    ++all.tallies[static_cast<size_t>(number)]->same;
}

// A child of fork() writes to the same driver: its numbers must not be its parent's.
void number_apart() { reports().from = getpid() << 8; }

// Also called from a signal's handler, hence no lock: at worst a count is one behind.
void write_counts() {
    Reports& all = reports();
    for (size_t i = 0; i < all.tallies.size(); ++i) {
        write_line("{\"count_of\":" + std::to_string(i) + ",\"count\":" + std::to_string(all.tallies[i]->count) +
                   ",\"same\":" + std::to_string(all.tallies[i]->same) + "}");
    }
}

std::string json_quoted(const std::string& text) { return quoted(text); }

static std::string triple(unsigned x, unsigned y, unsigned z) {
    return "(" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
}

std::string describe(const Thread& thread) {
    const uint3 b = thread.block->index;
    return "thread " + triple(thread.index.x, thread.index.y, thread.index.z) + " of block " + triple(b.x, b.y, b.z);
}

std::string describe(const Grid& launch, uint64_t block, uint32_t thread) {
    const dim3 g = launch.grid, s = launch.block;
    return "thread " + triple(thread % s.x, thread / s.x % s.y, thread / (s.x * s.y)) + " of block " +
           triple(static_cast<unsigned>(block % g.x), static_cast<unsigned>(block / g.x % g.y),
                  static_cast<unsigned>(block / (uint64_t{g.x} * g.y)));
}

}  // namespace opw::core
