// Hash tables of one index: buckets of a fixed size that hold neuron numbers, flat in memory.
//
// Every table is written by one thread at a time, and any thread may read meanwhile: slots and the
// state of a bucket are single words, read and written whole, and a reader that sees a neuron twice
// or not at all while it moves loses nothing, since an active set is a sample anyway. A full bucket
// keeps the newest (kFifo) or a fair sample of all that came (kReservoir).
//
// A bucket is its state and its slots side by side, so that a visit to a bucket with few neurons is
// one cache line: with 14, 30 or 62 slots buckets are whole lines.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kernel_table.h"
#include "sparse/huge_array.h"
#include "sparse/mixing.h"

namespace mh {

enum class Filling { kReservoir, kFifo };

struct TableShape {
  Index tables, buckets;
  int bucket;  // slots
  Filling filling;
  std::uint64_t seed;  // of the reservoir
};

struct Occupancy {
  std::int64_t slots = 0;    // in all tables
  std::int64_t held = 0;     // slots in use
  std::int64_t dropped = 0;  // neurons that a full bucket has no room for
  std::int64_t empty = 0;    // buckets
  std::int64_t full = 0;     // buckets
  std::int64_t largest = 0;  // neurons of the fullest bucket, dropped ones too
};

class Tables {
 public:
  explicit Tables(const TableShape& shape)
      : shape_(shape),
        stride_(static_cast<std::size_t>(shape.bucket + 3) / 2 * 2),
        words_(static_cast<std::size_t>(shape.tables * shape.buckets) * stride_) {}

  // Empties a table and puts neurons 0 to n - 1 into it; codes[n].
  void fill(Index table, const std::uint16_t* codes, Index n);
  void insert(Index table, std::uint16_t code, std::int32_t neuron) {
    add(bucket(table, code), neuron);
  }
  void remove(Index table, std::uint16_t code, std::int32_t neuron);

  // Ask for a bucket's state to be in the cache soon, and for the neurons that it says it holds.
  void prefetch(Index table, std::uint16_t code) const {
    __builtin_prefetch(bucket(table, code));
  }
  void prefetch_neurons(Index table, std::uint16_t code) const {
    const std::int32_t* words = bucket(table, code);
    const int last = kStateWords + state_of(words).held;
    for (int i = kLine; i < last; i += kLine) __builtin_prefetch(words + i);
  }

  // visit(neuron) for each neuron of a bucket.
  template <typename Visit>
  void each(Index table, std::uint16_t code, const Visit& visit) const {
    const std::int32_t* words = bucket(table, code);
    const int last = kStateWords + state_of(words).held;
    for (int i = kStateWords; i < last; ++i) visit(__atomic_load_n(words + i, __ATOMIC_RELAXED));
  }

  const TableShape& shape() const { return shape_; }
  Occupancy occupancy() const;
  std::size_t bytes() const { return words_.bytes(); }

 private:
  static constexpr int kStateWords = 2;  // of 32 bits, before the slots
  static constexpr int kLine = 16;       // words in a cache line

  // A bucket's state, 64 bits in memory.
  struct State {
    std::uint16_t held;        // slots in use, from the first on
    std::uint16_t next;        // kFifo: the slot of the oldest, once all are in use
    std::uint32_t population;  // neurons whose code this is, dropped ones too
  };

  std::int32_t* bucket(Index table, std::uint16_t code) const {
    return words_.data() + static_cast<std::size_t>(table * shape_.buckets + code) * stride_;
  }

  // Acquire and release: a reader that sees one more slot in use finds the neuron in it.
  static State state_of(const std::int32_t* bucket) {
    const std::uint64_t bits =
        __atomic_load_n(reinterpret_cast<const std::uint64_t*>(bucket), __ATOMIC_ACQUIRE);
    return {static_cast<std::uint16_t>(bits), static_cast<std::uint16_t>(bits >> 16),
            static_cast<std::uint32_t>(bits >> 32)};
  }
  static void set_state(std::int32_t* bucket, State state) {
    const std::uint64_t bits =
        std::uint64_t{state.population} << 32 | std::uint64_t{state.next} << 16 | state.held;
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(bucket), bits, __ATOMIC_RELEASE);
  }

  void add(std::int32_t* bucket, std::int32_t neuron) {
    State state = state_of(bucket);
    ++state.population;
    Index slot = state.held;
    if (slot < shape_.bucket) {
      ++state.held;
    } else {
      slot = slot_in_full(bucket, state);
    }
    if (slot < shape_.bucket) {
      __atomic_store_n(bucket + kStateWords + slot, neuron, __ATOMIC_RELAXED);
    }
    set_state(bucket, state);
  }
  Index slot_in_full(const std::int32_t* bucket, State& state) const;

  TableShape shape_;
  std::size_t stride_;              // words of a bucket, even: states are aligned
  HugeArray<std::int32_t> words_;  // [tables][buckets][stride]
};

}  // namespace mh
