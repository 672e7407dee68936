// The one list of checks, in the order in which they see an access: the first that refuses it stops
// the thread, so those that follow see only accesses that are made.
#include "checks/bounds.h"

namespace opw::core {

void add_checks() {
    add_observer(new checks::Bounds, true);
}

}  // namespace opw::core
