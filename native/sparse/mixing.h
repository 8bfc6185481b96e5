// Random numbers that depend on nothing but what they are asked for, so that any thread may draw
// them in any order and the result is the same.
#pragma once

#include <cstdint>

namespace mh {

// splitmix64's finisher.
inline std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}
inline std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  return mixed(mixed(a + 0x9E3779B97F4A7C15u) ^ b);
}

// 0 to n - 1 out of 64 random bits; n below 2^32.
inline std::uint64_t below(std::uint64_t bits, std::uint64_t n) { return (bits >> 32) * n >> 32; }

}  // namespace mh
