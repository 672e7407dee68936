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

// The classes are final, so the calls are direct.
bool check(const Access& a) { return bounds->access(a) && initialized->access(a) && races->access(a); }
bool check_and_count(const Access& a) { return check(a) && counters->access(a); }

}  // namespace

void add_checks() {
    add_observer(bounds = new checks::Bounds);
    add_observer(initialized = new checks::Initialized);
    add_observer(races = new checks::Races);
    add_observer(new checks::Synchronization);
    on_access = check;
    const char* count = std::getenv("OPWRIGHT_EMULATOR_COUNTERS");
    if (count && *count == '1') {
        add_observer(counters = new checks::Counters);
        on_access = check_and_count;
    }
}

}  // namespace opw::core
