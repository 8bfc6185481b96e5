// The clock of the lanes.
#pragma once

#include "wire/clock.h"

namespace mh::server {

using wire::now_ns;

}  // namespace mh::server
