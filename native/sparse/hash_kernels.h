// Locality-sensitive hashing of a block of rows, one row in each lane.
//
// Rows are laid into columns first: every hash function then reads the same few coordinates of all
// rows of the block as whole vectors. Each hash function gives a digit; digits of a table join to
// the number of a bucket. No sum depends on the block or the lane a row is in, or on the
// instruction set: a row hashes to the same buckets wherever it is hashed.
#pragma once

#include "kernels/elementwise.h"
#include "kernels/kernel_table.h"
#include "kernels/vec.h"

namespace mh::MH_ISA {

static_assert(kHashBlock % kLanes == 0, "a block is whole vectors");

// Turns kLanes vectors of one row each into kLanes vectors of one coordinate each: perfect
// shuffles, as often as halving kLanes takes.
MH_INLINE void turn(Vec* v) {
  Vec next[kLanes];
  MH_UNROLL
  for (int step = 1; step < kLanes; step *= 2) {
    MH_UNROLL
    for (int i = 0; i < kLanes / 2; ++i) {
      interleave(v[i], v[i + kLanes / 2], next[2 * i], next[2 * i + 1]);
    }
    MH_UNROLL
    for (int i = 0; i < kLanes; ++i) v[i] = next[i];
  }
}

// What is not a number never wins, and where zeros don't compete nor do they.
MH_INLINE Vec entry(Vec v, HashEntries entries) {
  const Vec lowest = splat(kNoEntry);
  if (entries != HashEntries::kAll) v = pick(same(v, v), v, lowest);
  if (entries == HashEntries::kNonZero) v = pick(same(v, zero()), lowest, v);
  return v;
}

// block[j][lane] = rows[lane][j]; lanes from `count` on repeat the first row.
inline void lay_block(Index width, const float* const* rows, int count, HashEntries entries,
                      float* block) {
  for (int lane = 0; lane < kHashBlock; lane += kLanes) {
    if (lane >= count) return;
    const float* row[kLanes];
    for (int i = 0; i < kLanes; ++i) row[i] = rows[lane + i < count ? lane + i : 0];
    for (Index j = 0; j < width; j += kLanes) {
      Vec v[kLanes];
      MH_UNROLL
      for (int i = 0; i < kLanes; ++i) v[i] = entry(load_upto(row[i] + j, width - j), entries);
      turn(v);
      const Index columns = smaller(kLanes, width - j);
      for (Index i = 0; i < columns; ++i) store(block + (j + i) * kHashBlock + lane, v[i]);
    }
  }
}

// Keeps the `most` largest positive entries of each row, and those equal to the last of them, as
// ones; everything else becomes no entry.
inline void keep_largest(Index width, Index most, int count, float* block) {
  const Vec wanted = splat(static_cast<float>(most) - 0.5f);
  for (int lane = 0; lane < count; lane += kLanes) {
    // The largest number that at least `most` entries exceed, bit by bit: positive floats order
    // like their bits.
    IntVec threshold = {};
    for (int bit = 30; bit >= 0; --bit) {
      const IntVec higher = threshold | (std::int32_t{1} << bit);
      Vec found = zero();
      for (Index j = 0; j < width; ++j) {
        const Vec v = load(block + j * kHashBlock + lane);
        found = found + keep(above(v, (Vec)higher), splat(1.0f));
      }
      threshold = (IntVec)pick(above(found, wanted), (Vec)higher, (Vec)threshold);
    }
    for (Index j = 0; j < width; ++j) {
      float* at = block + j * kHashBlock + lane;
      store(at, pick(above(load(at), (Vec)threshold), splat(1.0f), splat(kNoEntry)));
    }
  }
}

// The position of the largest entry of each bin, the first among equals; kEmptyBin without any.
template <int vectors>
MH_INLINE void winners_in(const HashBins& p, const float* block, std::uint8_t* digits) {
  for (Index h = 0; h < p.hashes; ++h) {
    const std::uint32_t* at = p.offsets + h * p.bin;
    Vec best[vectors], position[vectors];
    MH_UNROLL
    for (int v = 0; v < vectors; ++v) {
      best[v] = load(block + at[0] + v * kLanes);
      position[v] = zero();
    }
    for (int i = 1; i < p.bin; ++i) {
      const Vec here = splat(static_cast<float>(i));
      MH_UNROLL
      for (int v = 0; v < vectors; ++v) {
        const Vec x = load(block + at[i] + v * kLanes);
        position[v] = pick(above(x, best[v]), here, position[v]);
        best[v] = larger(x, best[v]);
      }
    }
    MH_UNROLL
    for (int v = 0; v < vectors; ++v) {
      const Vec empty = splat(static_cast<float>(kEmptyBin));
      position[v] = pick(same(best[v], splat(kNoEntry)), empty, position[v]);
      store_bytes(digits + h * kHashBlock + v * kLanes, position[v]);
    }
  }
}

// Whether the sum of the coordinates with a plus exceeds that of those with a minus: 1 or 0.
template <int vectors>
MH_INLINE void signs_in(const HashProjections& p, const float* block, std::uint8_t* digits) {
  for (Index h = 0; h < p.hashes; ++h) {
    const std::uint32_t* plus = p.offsets + p.starts[2 * h];
    const std::uint32_t* minus = p.offsets + p.starts[2 * h + 1];
    const Index pluses = p.starts[2 * h + 1] - p.starts[2 * h];
    const Index minuses = p.starts[2 * h + 2] - p.starts[2 * h + 1];
    const Index pairs = smaller(pluses, minuses);
    Vec up[vectors], down[vectors];
    MH_UNROLL
    for (int v = 0; v < vectors; ++v) up[v] = down[v] = zero();
    for (Index i = 0; i < pairs; ++i) {
      MH_UNROLL
      for (int v = 0; v < vectors; ++v) {
        up[v] = up[v] + load(block + plus[i] + v * kLanes);
        down[v] = down[v] + load(block + minus[i] + v * kLanes);
      }
    }
    for (Index i = pairs; i < pluses; ++i) {
      MH_UNROLL
      for (int v = 0; v < vectors; ++v) up[v] = up[v] + load(block + plus[i] + v * kLanes);
    }
    for (Index i = pairs; i < minuses; ++i) {
      MH_UNROLL
      for (int v = 0; v < vectors; ++v) down[v] = down[v] + load(block + minus[i] + v * kLanes);
    }
    MH_UNROLL
    for (int v = 0; v < vectors; ++v) {
      store_bytes(digits + h * kHashBlock + v * kLanes, keep(above(up[v], down[v]), splat(1.0f)));
    }
  }
}

// Several vectors at a time while there are as many lanes in use, else one.
constexpr int kHashVectors = kHashBlock / kLanes < 4 ? kHashBlock / kLanes : 4;

inline void hash_winners(const HashBins& p, const float* block, int count, std::uint8_t* digits) {
  int lane = 0;
  for (; lane + (kHashVectors - 1) * kLanes < count; lane += kHashVectors * kLanes) {
    winners_in<kHashVectors>(p, block + lane, digits + lane);
  }
  for (; lane < count; lane += kLanes) winners_in<1>(p, block + lane, digits + lane);
}

inline void hash_signs(const HashProjections& p, const float* block, int count,
                       std::uint8_t* digits) {
  int lane = 0;
  for (; lane + (kHashVectors - 1) * kLanes < count; lane += kHashVectors * kLanes) {
    signs_in<kHashVectors>(p, block + lane, digits + lane);
  }
  for (; lane < count; lane += kLanes) signs_in<1>(p, block + lane, digits + lane);
}

// codes[table][lane]: the digits side by side, folded to the bits that number the buckets.
inline void join_digits(const HashDigits& p, const std::uint8_t* digits, std::uint16_t* codes) {
  for (Index table = 0; table < p.tables; ++table) {
    const std::uint8_t* at = digits + table * p.hashes * kHashBlock;
    std::uint32_t joined[kHashBlock] = {};
    for (int h = 0; h < p.hashes; ++h) {
      for (int i = 0; i < kHashBlock; ++i) {
        joined[i] = (joined[i] << p.bits) | at[h * kHashBlock + i];
      }
    }
    if (p.fold_shift > 0) {
      for (int i = 0; i < kHashBlock; ++i) joined[i] = (joined[i] * kFoldFactor) >> p.fold_shift;
    }
    for (int i = 0; i < kHashBlock; ++i) {
      codes[table * kHashBlock + i] = static_cast<std::uint16_t>(joined[i]);
    }
  }
}

}  // namespace mh::MH_ISA
