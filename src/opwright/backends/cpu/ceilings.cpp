// One measurement of a speed limit of this machine per run:
//
//     ceilings <name> <threads> <bytes>
//
// prints one number: 1e9 operations, or bytes, per second. It is compiled for the instruction sets
// that the probe found usable, and with a*x+y contracted to one FMA where there is one. Exit codes:
// 2 for arguments it does not know, 3 (with the reason on stderr) where the machine refuses.

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

// The widest vectors the compiler was told it may use.
#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif

constexpr std::size_t huge_page = std::size_t{2} << 20;

[[noreturn]] void refuse(const char* why) {
    std::fprintf(stderr, "%s\n", why);
    std::exit(3);
}

// Makes the compiler believe that the memory at p is read and written here.
void touch(void* p) { asm volatile("" : : "r"(p) : "memory"); }

// --- time ---------------------------------------------------------------------------------------

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

// Runs work(0) ... work(threads - 1) at once: seconds from the first start to the last end.
template <class Work>
double together(int threads, const Work& work) {
    std::vector<Clock::time_point> began(threads), ended(threads);
    std::atomic<int> missing{threads};
    const auto body = [&](int id) {
        missing.fetch_sub(1);
        while (missing.load() > 0) std::this_thread::yield();
        began[id] = Clock::now();
        work(id);
        ended[id] = Clock::now();
    };
    std::vector<std::thread> team;
    for (int id = 1; id < threads; ++id) team.emplace_back(body, id);
    body(0);
    for (std::thread& thread : team) thread.join();
    return seconds_between(*std::min_element(began.begin(), began.end()),
                           *std::max_element(ended.begin(), ended.end()));
}

// The shortest of as many runs as fit into 0.2 s, of at least 3: whatever else the machine does can
// only lengthen a run, and a ceiling is what can be reached.
template <class Work>
double shortest(int threads, const Work& work) {
    const Clock::time_point start = Clock::now();
    double best = together(threads, work);
    for (int run = 1; run < 3 || seconds_between(start, Clock::now()) < 0.2; ++run)
        best = std::min(best, together(threads, work));
    return best;
}

// --- arithmetic ---------------------------------------------------------------------------------

// Each chain waits for its own last result: 2 units x 4 cycles of latency (5 on Broadwell) need 8
// to 10 chains in flight, mul + add on separate pairs of units (Zen) 2 x 6. 12 chains and the 4
// constants just fit the 16 registers of AVX2 and SSE2.
constexpr int chains = 12;
using Chain = std::make_index_sequence<chains>;

// v = v*x + y, alternately with x a little above 1 and well below 1, so that values stay between
// subnormals and infinity and every bit of them keeps changing: constant operands draw less power,
// and let some CPUs run faster than real data does.
template <class Element>
struct Fma {
    typedef Element Vector __attribute__((vector_size(vector_bytes)));
    static constexpr int lanes = vector_bytes / sizeof(Element);
    static constexpr double operations_per_round = 2.0 * 2 * lanes * chains;

    Vector chain[chains], x[2], y[2];

    explicit Fma(std::mt19937_64& random) {
        std::uniform_real_distribution<Element> unit(0, 1);
        for (int lane = 0; lane < lanes; ++lane) {
            for (Vector& v : chain) v[lane] = unit(random);
            for (Vector& v : y) v[lane] = unit(random) - Element(0.5);
            x[0][lane] = Element(1) + unit(random) / 5;
            x[1][lane] = Element(-0.8) + unit(random) / 5;
        }
    }

    template <std::size_t... I>
    void run(std::int64_t rounds, std::index_sequence<I...>) {
        Vector v[] = {chain[I]...};
        const Vector x0 = x[0], x1 = x[1], y0 = y[0], y1 = y[1];
        for (std::int64_t round = 0; round < rounds; ++round) {
            ((v[I] = v[I] * x0 + y0), ...);
            ((v[I] = v[I] * x1 + y1), ...);
        }
        ((chain[I] = v[I]), ...);
    }
};

#if defined(__AVX512BF16__)
// v += a.b over pairs of bf16. Sums of numbers with random signs; they grow, but not to infinity.
struct Dot {
    static constexpr double operations_per_round = 2.0 * 64 * chains;

    __m512 chain[chains];
    alignas(64) std::uint16_t operands[4][32];

    explicit Dot(std::mt19937_64& random) {
        for (__m512& v : chain) v = _mm512_setzero_ps();
        for (auto& row : operands)
            for (std::uint16_t& bits : row) bits = std::uint16_t(random() & 0x807F) | 0x3F00;
    }

    template <std::size_t... I>
    void run(std::int64_t rounds, std::index_sequence<I...>) {
        __m512 v[] = {chain[I]...};
        const __m512bh a0 = (__m512bh)_mm512_load_si512(operands[0]);
        const __m512bh b0 = (__m512bh)_mm512_load_si512(operands[1]);
        const __m512bh a1 = (__m512bh)_mm512_load_si512(operands[2]);
        const __m512bh b1 = (__m512bh)_mm512_load_si512(operands[3]);
        for (std::int64_t round = 0; round < rounds; ++round) {
            ((v[I] = _mm512_dpbf16_ps(v[I], a0, b0)), ...);
            ((v[I] = _mm512_dpbf16_ps(v[I], a1, b1)), ...);
        }
        ((chain[I] = v[I]), ...);
    }
};
#endif

#if defined(__AMX_TILE__)
// 2x2 tiles of results: 4 chains, because an instruction takes 52 cycles and one can start every
// 16. The operands stay in the other 4 tiles. g++ 12's intrinsics do not say what memory they
// read, hence a touch() before each.
struct alignas(64) Tiles {
    std::uint8_t operands[4][1024];
    std::uint8_t results[4][1024];

    template <class Fill>
    explicit Tiles(const Fill& fill) : results{} {
        for (auto& tile : operands) fill(tile);
    }

    void begin() {
        struct alignas(64) {
            std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
            std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } configuration;
        touch(&configuration);
        _tile_loadconfig(&configuration);
        touch(this);
        _tile_loadd(4, operands[0], 64);
        _tile_loadd(5, operands[1], 64);
        _tile_loadd(6, operands[2], 64);
        _tile_loadd(7, operands[3], 64);
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }

    void end() {
        _tile_stored(0, results[0], 64);
        _tile_stored(1, results[1], 64);
        _tile_stored(2, results[2], 64);
        _tile_stored(3, results[3], 64);
        _tile_release();
        touch(this);
    }
};
#endif

#if defined(__AMX_BF16__)
struct AmxBf16 : Tiles {
    static constexpr double operations_per_round = 4 * 2.0 * 16 * 16 * 32;

    explicit AmxBf16(std::mt19937_64& random)
        : Tiles([&random](std::uint8_t (&tile)[1024]) {
              for (int i = 0; i < 1024; i += 2) {  // little-endian: magnitudes in [0.5, 1)
                  tile[i] = std::uint8_t(random() & 0x7F);
                  tile[i + 1] = (random() & 1) ? 0xBF : 0x3F;
              }
          }) {}

    void run(std::int64_t rounds, Chain) {
        begin();
        for (std::int64_t round = 0; round < rounds; ++round) {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        end();
    }
};
#endif

#if defined(__AMX_INT8__)
struct AmxInt8 : Tiles {
    static constexpr double operations_per_round = 4 * 2.0 * 16 * 16 * 64;

    explicit AmxInt8(std::mt19937_64& random)
        : Tiles([&random](std::uint8_t (&tile)[1024]) {
              for (std::uint8_t& byte : tile) byte = std::uint8_t(random());
          }) {}

    void run(std::int64_t rounds, Chain) {
        begin();
        for (std::int64_t round = 0; round < rounds; ++round) {
            _tile_dpbssd(0, 4, 6);
            _tile_dpbssd(1, 4, 7);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        }
        end();
    }
};
#endif

// 1e9 operations per second of `threads` threads at once, each on data of its own.
template <class Unit>
double operations(int threads) {
    const auto run = [](int id, std::int64_t rounds) {
        std::mt19937_64 random(id);
        Unit unit(random);
        touch(&unit);
        unit.run(rounds, Chain{});
        touch(&unit);
    };
    // Runs of 2.5 to 5 ms: long against the microseconds between two threads' starts, short enough
    // that on a busy machine some run goes undisturbed.
    std::int64_t rounds = 1000;
    while (together(1, [&](int) { run(0, rounds); }) < 0.0025) rounds *= 2;
    const double best = shortest(threads, [&](int id) { run(id, rounds); });
    return double(rounds) * Unit::operations_per_round * threads / best / 1e9;
}

// --- memory -------------------------------------------------------------------------------------

typedef std::uint64_t Line __attribute__((vector_size(vector_bytes)));

// Memory on huge pages where the kernel gives them: with 4 KiB pages, walks of the page table are
// part of what is measured.
class Pages {
public:
    explicit Pages(std::size_t bytes) : size_(bytes + huge_page) {
        base_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base_ == MAP_FAILED) refuse("no memory for the buffers");
        madvise(base_, size_, MADV_HUGEPAGE);
    }
    ~Pages() { munmap(base_, size_); }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;

    Line* begin() const {
        const auto at = reinterpret_cast<std::uintptr_t>(base_);
        return reinterpret_cast<Line*>((at + huge_page - 1) / huge_page * huge_page);
    }

private:
    std::size_t size_;
    void* base_;
};

void stream(Line* to, Line value) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)value);
#elif defined(__AVX2__)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)value);
#elif defined(__x86_64__)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)value);
#else
    *to = value;
#endif
}

// 8 loads on their way at once; one chain of additions would wait for each.
void read_all(const Line* from, std::size_t lines) {
    Line sum[8] = {};
    for (std::size_t i = 0; i < lines; i += 8)
        for (int j = 0; j < 8; ++j) sum[j] ^= from[i + j];
    for (Line& part : sum) touch(&part);
}

void copy_all(const Line* from, Line* to, std::size_t lines) {
    for (std::size_t i = 0; i < lines; i += 8)
        for (int j = 0; j < 8; ++j) to[i + j] = from[i + j];
    touch(to);
}

void stream_all(const Line* from, Line* to, std::size_t lines) {
    for (std::size_t i = 0; i < lines; i += 8)
        for (int j = 0; j < 8; ++j) stream(to + i + j, from[i + j]);
#if defined(__x86_64__)
    _mm_sfence();
#endif
    touch(to);
}

// Every thread has a part of its own, a whole number of huge pages, and is the first to write it,
// so that the kernel puts it on memory near that thread.
struct Parts {
    std::size_t bytes, lines;
    Pages pages;

    Parts(int threads, std::size_t total)
        : bytes((total / threads + huge_page - 1) / huge_page * huge_page),
          lines(bytes / sizeof(Line)),
          pages(bytes * threads) {
        together(threads, [&](int id) {
            for (std::size_t i = 0; i < lines; ++i) part(id)[i] = Line{i, 1};
        });
    }
    Line* part(int id) const { return pages.begin() + id * lines; }
};

double read_bandwidth(int threads, std::size_t bytes) {
    const Parts from(threads, bytes);
    const double best = shortest(threads, [&](int id) { read_all(from.part(id), from.lines); });
    return double(from.bytes) * threads / best / 1e9;
}

// An ordinary store first reads the line it will overwrite; one past the caches does not, but keeps
// fewer lines on their way. Which is faster depends on the CPU, so the better one counts.
double copy_bandwidth(int threads, std::size_t bytes) {
    const Parts from(threads, bytes), to(threads, bytes);
    const double ordinary =
        shortest(threads, [&](int id) { copy_all(from.part(id), to.part(id), from.lines); });
    const double streamed =
        shortest(threads, [&](int id) { stream_all(from.part(id), to.part(id), from.lines); });
    return 2.0 * double(from.bytes) * threads / std::min(ordinary, streamed) / 1e9;
}

// Linux keeps AMX's 8 KiB of tile data from a process until it asks: arch_prctl, 0x1023 is
// ARCH_REQ_XCOMP_PERM, 18 the tile data.
[[maybe_unused]] void ask_for_tiles() {
#if defined(__x86_64__)
    if (syscall(SYS_arch_prctl, 0x1023, 18) != 0) refuse("the kernel refuses AMX's tile registers");
#endif
}

double measure(const std::string& name, int threads, std::size_t bytes) {
    if (name == "fma f32") return operations<Fma<float>>(threads);
    if (name == "fma f64") return operations<Fma<double>>(threads);
#if defined(__AVX512BF16__)
    if (name == "dot bf16") return operations<Dot>(threads);
#endif
#if defined(__AMX_BF16__)
    if (name == "amx bf16") {
        ask_for_tiles();
        return operations<AmxBf16>(threads);
    }
#endif
#if defined(__AMX_INT8__)
    if (name == "amx int8") {
        ask_for_tiles();
        return operations<AmxInt8>(threads);
    }
#endif
    if (name == "read") return read_bandwidth(threads, bytes);
    if (name == "copy") return copy_bandwidth(threads, bytes);
    std::fprintf(stderr, "not compiled for %s\n", name.c_str());
    std::exit(2);
}

}  // namespace

int main(int count, char** arguments) {
    const long threads = count == 4 ? std::atol(arguments[2]) : 0;
    const long long bytes = count == 4 ? std::atoll(arguments[3]) : 0;
    if (threads < 1 || threads > 65536 || bytes < 1) {
        std::fprintf(stderr, "usage: ceilings <name> <threads> <bytes>\n");
        return 2;
    }
    std::printf("%.9g\n", measure(arguments[1], int(threads), std::size_t(bytes)));
}
