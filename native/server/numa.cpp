#include "server/numa.h"

#include <sched.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace mh::server {
namespace {

// A list as the kernel writes it: "0-3,8,10-11".
cpu_set_t parse_list(const std::string& list) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::istringstream ranges(list);
  std::string range;
  while (std::getline(ranges, range, ',')) {
    int first = 0, last = 0;
    char dash = 0;
    std::istringstream numbers(range);
    if (!(numbers >> first)) continue;
    if (!(numbers >> dash >> last)) last = first;
    for (int cpu = first; cpu <= last && cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &set);
  }
  return set;
}

// The processors of each node that this thread may use; nodes without any are left out.
std::vector<cpu_set_t> usable_nodes() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
  std::vector<cpu_set_t> nodes;
  for (int node = 0;; ++node) {
    std::ifstream file("/sys/devices/system/node/node" + std::to_string(node) + "/cpulist");
    std::string list;
    if (!std::getline(file, list)) return nodes;
    cpu_set_t set = parse_list(list);
    CPU_AND(&set, &set, &allowed);
    if (CPU_COUNT(&set) > 0) nodes.push_back(set);
  }
}

}  // namespace

void pin_to_node_of(unsigned lane) {
  const std::vector<cpu_set_t> nodes = usable_nodes();
  if (nodes.size() < 2) return;
  const cpu_set_t& node = nodes[lane % nodes.size()];
  (void)sched_setaffinity(0, sizeof node, &node);
}

}  // namespace mh::server
