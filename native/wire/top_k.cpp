#include "top_k.h"

#include <array>
#include <cstring>

namespace mh::wire {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffff;

// Magnitudes as integers order like the floats, with NaN above everything.
std::uint32_t magnitude(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & kMagnitude;
}

// What is known of the smallest magnitude that is kept: its upper bits.
struct Threshold {
  std::uint32_t prefix = 0;   // those bits, in place
  std::uint32_t known = 0;    // mask of the bits known
  std::size_t remaining = 0;  // how many to keep of those that share the prefix
};

// Finds the next `bits` bits below those known, by counting how often each value occurs.
void refine(const float* x, std::size_t n, int shift, int bits, Threshold& t) {
  constexpr std::size_t kBins = 2048;
  std::array<std::uint32_t, kBins> counts{};
  const std::uint32_t mask = (1u << bits) - 1u;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t m = magnitude(x[i]);
    if ((m & t.known) == t.prefix) ++counts[(m >> shift) & mask];
  }
  std::uint32_t bin = mask;
  while (bin > 0 && counts[bin] < t.remaining) t.remaining -= counts[bin--];
  t.prefix |= bin << shift;
  t.known |= mask << shift;
}

Threshold threshold_of(const float* x, std::size_t n, std::size_t count) {
  Threshold t;
  t.remaining = count;
  refine(x, n, 20, 11, t);
  refine(x, n, 10, 10, t);
  refine(x, n, 0, 10, t);
  return t;
}

}  // namespace

std::size_t largest_positions(const float* x, std::size_t n, std::size_t count,
                              std::uint8_t* positions) {
  if (count == 0) return 0;
  Threshold t = threshold_of(x, n, count);
  std::size_t found = 0;
  for (std::size_t i = 0; i < n && found < count; ++i) {
    const std::uint32_t m = magnitude(x[i]);
    if (m < t.prefix || (m == t.prefix && t.remaining == 0)) continue;
    if (m == t.prefix) --t.remaining;
    const auto position = static_cast<std::uint32_t>(i);
    std::memcpy(positions + 4 * found++, &position, sizeof position);
  }
  return found;
}

}  // namespace mh::wire
