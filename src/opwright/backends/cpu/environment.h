// How a thread computes: the rounding of its arithmetic, whether it flushes subnormals, its traps. What
// arithmetic merely reports (the flags for inexact and the like) is no part of it.
#pragma once

#include <cstdint>
#include <string>

namespace opw::host {

class FloatEnvironment {
  public:
    // This thread's, now. Reading takes 2 ns, where fegetenv and fesetenv take 40.
    FloatEnvironment() {
#if defined(__x86_64__)
        asm volatile("stmxcsr %0" : "=m"(vector_));
        asm volatile("fnstcw %0" : "=m"(x87_));
        vector_ &= ~kFlags;
#elif defined(__aarch64__)
        asm volatile("mrs %0, fpcr" : "=r"(vector_));
#endif
    }

    bool operator==(const FloatEnvironment& other) const {
        return vector_ == other.vector_ && x87_ == other.x87_;
    }

    // Makes it this thread's again where it was changed.
    void restore() const {
        const FloatEnvironment now;
        if (now == *this) return;
#if defined(__x86_64__)
        asm volatile("ldmxcsr %0" : : "m"(vector_));
        asm volatile("fldcw %0" : : "m"(x87_));
#elif defined(__aarch64__)
        asm volatile("msr fpcr, %0" : : "r"(vector_));
#endif
    }

    // Words for what a later one has otherwise.
    std::string changed(const FloatEnvironment& later) const {
        std::string words;
        const auto say = [&words](bool differs, const char* what) {
            if (differs) words += (words.empty() ? "" : ", ") + std::string(what);
        };
        const auto bits = vector_ ^ later.vector_;
#if defined(__x86_64__)
        // Intel's manual, volume 1, 10.2.3.
        say(bits & 0x8000, "flush to zero");
        say(bits & 0x0040, "denormals are zero");
        say(bits & 0x6000, "the rounding mode");
        say(bits & 0x1F80, "traps");
        say(x87_ != later.x87_, "the x87 control word");
#elif defined(__aarch64__)
        // Arm's manual, FPCR: FZ and FZ16, RMode, and the enabled traps.
        say(bits & 0x1080000, "flush to zero");
        say(bits & 0xC00000, "the rounding mode");
        say(bits & 0x9F00, "traps");
        say(bits & ~std::uint64_t{0x1C89F00}, "FPCR");
#else
        (void)bits;
#endif
        return words;
    }

  private:
#if defined(__x86_64__)
    static constexpr std::uint32_t kFlags = 0x3F;
    std::uint32_t vector_ = 0;
#else
    std::uint64_t vector_ = 0;
#endif
    std::uint16_t x87_ = 0;
};

}  // namespace opw::host
