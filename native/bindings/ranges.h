// Ranges of a flat array, as two arrays from Python: where each starts and how many floats it has.
#pragma once

#include <stdexcept>
#include <string>

#include "bindings/arrays.h"

namespace mh {

struct Ranges {
  std::size_t size;
  const std::int64_t* starts;
  const std::int64_t* counts;
};

// Throws std::invalid_argument unless every range lies within `floats`.
inline Ranges ranges_within(const ConstIntegers& starts, const ConstIntegers& counts,
                            std::size_t floats) {
  if (starts.size() != counts.size()) {
    throw std::invalid_argument("There are " + std::to_string(starts.size()) + " starts and " +
                                std::to_string(counts.size()) + " counts; expected as many.");
  }
  const Ranges ranges{starts.size(), starts.data(), counts.data()};
  const auto end = static_cast<std::int64_t>(floats);
  for (std::size_t i = 0; i < ranges.size; ++i) {
    const std::int64_t start = ranges.starts[i], count = ranges.counts[i];
    if (start < 0 || count < 0 || start > end || count > end - start) {
      throw std::invalid_argument("A range starts at " + std::to_string(start) + " and has " +
                                  std::to_string(count) + " floats; the array has " +
                                  std::to_string(floats) + ".");
    }
  }
  return ranges;
}

}  // namespace mh
