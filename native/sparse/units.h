// Work cut into units that the threads of a team take as they come.
//
// Who takes a unit never matters to its result, so results are the same for any number of threads;
// and a thread that the machine keeps waiting holds nobody up for longer than a unit.
#pragma once

#include <atomic>

#include "kernels/kernel_table.h"
#include "sparse/team.h"
#include "system.h"

namespace mh {

// Calls body(unit, thread) once for every unit; returns when all are done.
template <typename Body>
void for_units(Team& team, Index units, const Body& body) {
  std::atomic<Index> next{0};
  team.run([&](int thread) {
    const DenormalsFlushed flushed;
    for (Index unit; (unit = next.fetch_add(1, std::memory_order_relaxed)) < units;) {
      body(unit, thread);
    }
  });
}

inline Index units_of(Index size, Index unit) { return (size + unit - 1) / unit; }

}  // namespace mh
