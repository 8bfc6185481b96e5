// Where a lane runs: on the processors of one NUMA node, where a machine has several (Adam,
// section 3.3.1). Memory that a lane touches first then lies beside it.
#pragma once

namespace mh::server {

// Keeps the calling thread on the node that lane `lane` belongs to. Does nothing on a machine of
// one node, and where the system does not say or does not allow it.
void pin_to_node_of(unsigned lane);

}  // namespace mh::server
