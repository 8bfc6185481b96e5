// How hash functions lie in memory for the kernels that evaluate them (hash_kernels.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace mh {

// Rows that are hashed together, one in each lane.
constexpr int kHashBlock = 32;

// The digit of a bin without entries; bins have at most 64 coordinates.
constexpr int kEmptyBin = 127;
constexpr int kMostInBin = 64;

// Stands in a block where a row has no entry that could win.
constexpr float kNoEntry = -__builtin_inff();

// Multiplying by it spreads joined digits over all bits (Knuth, volume 3, 6.4).
constexpr std::uint32_t kFoldFactor = 0x9E3779B1u;

// Which entries of a row compete in bins. kAll: for sums, where everything counts as it is.
enum class HashEntries { kAll, kNumbers, kNonZero };

// Offsets of coordinates are into a block: coordinate * kHashBlock.
struct HashBins {
  std::ptrdiff_t hashes;
  int bin;
  const std::uint32_t* offsets;  // [hashes][bin]
};

struct HashProjections {
  std::ptrdiff_t hashes;
  const std::uint32_t* starts;   // [2 * hashes + 1]: hash h adds from 2h on and subtracts from
  const std::uint32_t* offsets;  // 2h + 1 on
};

struct HashDigits {
  std::ptrdiff_t tables;
  int hashes;      // digits of a table
  int bits;        // of a digit
  int fold_shift;  // 32 less the bits that number buckets, or 0: no folding
};

}  // namespace mh
