// The one list of checks, in the order in which they see an access: the first that refuses it stops
// the thread, so those that follow see only accesses that are made.
#include "checks/bounds.h"
#include "checks/counters.h"
#include "checks/initialized.h"
#include "checks/races.h"
#include "checks/synchronization.h"

namespace opw::core {

namespace {

checks::Bounds* bounds;
checks::Initialized* initialized;
checks::Races* races;
checks::Counters* counters;

template <bool counted> __attribute__((always_inline)) inline bool check(const Access& a) {
    return bounds->access(a) && initialized->access(a) && races->access(a) && (!counted || counters->access(a));
}
template <bool counted, uint32_t size, unsigned flags> bool plain(Thread& t, uintptr_t address, uintptr_t pc) {
    return check<counted>(classify(t, address, size, flags, sites.number(pc, flags, size)));
}
template <bool counted> bool any(Thread& t, uintptr_t address, uint32_t size, unsigned flags, uintptr_t pc) {
    return check<counted>(classify(t, address, size, flags, sites.number(pc, flags, size)));
}
// Floats and doubles are what most kernels move; the rest shares one function.
template <bool counted> AccessHooks all_hooks() {
    AccessHooks h;
    h.read[2] = plain<counted, 4, is_read>;
    h.read[3] = plain<counted, 8, is_read>;
    h.write[2] = plain<counted, 4, is_write>;
    h.write[3] = plain<counted, 8, is_write>;
    h.any = any<counted>;
    return h;
}

}  // namespace

void add_checks() {
    add_observer(bounds = new checks::Bounds);
    add_observer(initialized = new checks::Initialized);
    add_observer(races = new checks::Races);
    add_observer(new checks::Synchronization);
    const char* count = std::getenv("OPWRIGHT_EMULATOR_COUNTERS");
    if (count && *count == '1') {
        add_observer(counters = new checks::Counters);
        hooks = all_hooks<true>();
    } else {
        hooks = all_hooks<false>();
    }
}

}  // namespace opw::core
