// Choosing the values of largest magnitude, in one to four walks and without sorting.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mh::wire {

// Writes the positions of the `count` <= n largest magnitudes, rising; of equal ones the first.
// Returns how many: fewer only if x changes meanwhile. `positions` (u32) may lie at any address.
std::size_t largest_positions(const float* x, std::size_t n, std::size_t count,
                              std::uint8_t* positions);

}  // namespace mh::wire
