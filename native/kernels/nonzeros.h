// Products that pass over zeros: behind a ReLU about every other number is one.
//
//   sums[r] += values[r] * block[k], for two rows r and the k where any of them is not zero
//
//              strip
//   block  k |--------|      The sums of two rows and a strip of six vectors fill twelve registers,
//            |--------|      and a vector of the block serves two multiply-adds, so that loads keep
//            |--------|      up with them. The block stays in the first-level cache.
//
// A zero times an infinity or a NaN is passed over too, unless a neighbour needs it.
#pragma once

#include "kernels/kernel_table.h"
#include "kernels/vec.h"

namespace mh::MH_ISA {

constexpr Index kTogether = 2;  // rows
constexpr int kStripVectors = 6;
constexpr Index kStrip = kStripVectors * kLanes;  // floats
constexpr Index kDepth = 48;                      // rows of a block; whole vectors, whole pairs

using Tile = Vec[kTogether][kStripVectors];

MH_INLINE void clear_tile(Tile& tile) {
  MH_UNROLL
  for (Index r = 0; r < kTogether; ++r) {
    MH_UNROLL
    for (int v = 0; v < kStripVectors; ++v) tile[r][v] = zero();
  }
}
MH_INLINE void load_tile(const float* from, Tile& tile) {
  MH_UNROLL
  for (Index r = 0; r < kTogether; ++r) {
    MH_UNROLL
    for (int v = 0; v < kStripVectors; ++v) tile[r][v] = load(from + r * kStrip + v * kLanes);
  }
}
MH_INLINE void store_tile(float* to, const Tile& tile) {
  MH_UNROLL
  for (Index r = 0; r < kTogether; ++r) {
    MH_UNROLL
    for (int v = 0; v < kStripVectors; ++v) store(to + r * kStrip + v * kLanes, tile[r][v]);
  }
}

// Numbers of a matrix, `row` floats from one row to the next and `step` from one number to the next.
struct Numbers {
  const float* data;
  Index row, step;
};

// The numbers of every two rows that are not both zero, by blocks of kDepth columns.
class Lists {
  struct Entry {
    float values[kTogether];
    std::int32_t at;  // of the block's row, in floats
  };
  static constexpr Index kEntryFloats = sizeof(Entry) / sizeof(float);

 public:
  static constexpr Index groups(Index rows) { return (rows + kTogether - 1) / kTogether; }
  // Floats that the lists of so many rows and columns take.
  static constexpr Index floats(Index rows, Index columns) {
    return groups(rows) * blocks(columns) * (kEntryFloats * kDepth + 1);
  }

  Lists(float* memory, Index rows, Index columns)
      : entries_(reinterpret_cast<Entry*>(memory)),
        counts_(reinterpret_cast<std::int32_t*>(memory + groups(rows) * blocks(columns) *
                                                             kEntryFloats * kDepth)),
        rows_(rows) {}

  // Lists the columns of one block, which begin with `x`, of the first `count` rows.
  void fill(Index block, Index count, Index columns, const Numbers& x) const {
    for (Index row = 0; row < count; row += kTogether) {
      const Index list = list_of(block, row), rows = smaller(kTogether, count - row);
      Entry* entry = entries_ + list * kDepth;
      for (Index k = 0; k < columns; ++k) {
        const float* at = x.data + row * x.row + k * x.step;
        bool any = false;
        for (Index r = 0; r < kTogether; ++r) {
          entry->values[r] = r < rows ? at[r * x.row] : 0.0f;
          any |= entry->values[r] != 0.0f;
        }
        entry->at = static_cast<std::int32_t>(k * kStrip);
        entry += any;
      }
      counts_[list] = static_cast<std::int32_t>(entry - (entries_ + list * kDepth));
    }
  }

  // Adds the products of the two rows from `row` on with a block.
  MH_INLINE void add_products(Index block, Index row, const float* from, Tile& sums) const {
    const Index list = list_of(block, row);
    const Entry* entry = entries_ + list * kDepth;
    for (const Entry* end = entry + counts_[list]; entry != end; ++entry) {
      const float* at = from + entry->at;
      Vec values[kTogether];
      MH_UNROLL
      for (Index r = 0; r < kTogether; ++r) values[r] = splat(entry->values[r]);
      MH_UNROLL
      for (int v = 0; v < kStripVectors; ++v) {
        Vec b = load(at + v * kLanes);
        keep_in_register(b);  // not loaded again for every row
        MH_UNROLL
        for (Index r = 0; r < kTogether; ++r) sums[r][v] = fma(values[r], b, sums[r][v]);
      }
    }
  }

 private:
  static constexpr Index blocks(Index columns) { return (columns + kDepth - 1) / kDepth; }
  Index list_of(Index block, Index row) const { return block * groups(rows_) + row / kTogether; }

  Entry* entries_;  // [block][group][kDepth]
  std::int32_t* counts_;
  Index rows_;
};

// Asks for part `part` of `parts` of some rows, while something else is computed.
template <int kWrite>
MH_INLINE void prefetch_part(const float* rows, Index count, Index ld, Index columns, Index part,
                             Index parts) {
  constexpr int kSecondLevel = 2;  // rows a power of two apart would push each other out of the first
  constexpr Index kLine = 64 / sizeof(float);
  for (Index r = part * count / parts; r < (part + 1) * count / parts; ++r) {
    for (Index c = 0; c < columns; c += kLine) {
      __builtin_prefetch(rows + r * ld + c, kWrite, kSecondLevel);
    }
  }
}

}  // namespace mh::MH_ISA
