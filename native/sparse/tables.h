// Hash tables of one index: buckets of a fixed size that hold neuron numbers, flat in memory.
//
// Every table is written by one thread at a time, and any thread may read meanwhile: slots and the
// state of a bucket are single words, read and written whole, and a reader that sees a neuron twice
// or not at all while it moves loses nothing, since an active set is a sample anyway. A full bucket
// keeps the newest (kFifo) or a fair sample of all that came (kReservoir).
#pragma once

#include <cstdint>

#include "kernel_table.h"
#include "sparse/huge_array.h"

namespace mh {

enum class Filling { kReservoir, kFifo };

struct TableShape {
  Index tables, buckets;
  int bucket;  // slots
  Filling filling;
  std::uint64_t seed;  // of the reservoir
};

struct Occupancy {
  std::int64_t slots = 0;      // in all tables
  std::int64_t held = 0;       // slots in use
  std::int64_t dropped = 0;    // neurons that a full bucket has no room for
  std::int64_t empty = 0;      // buckets
  std::int64_t full = 0;       // buckets
  std::int64_t largest = 0;    // neurons of the fullest bucket, dropped ones too
};

class Tables {
 public:
  explicit Tables(const TableShape& shape);

  void insert(Index table, std::uint16_t code, std::int32_t neuron);
  void remove(Index table, std::uint16_t code, std::int32_t neuron);

  // Asks for a bucket's first slots and its state to be in the cache soon.
  void prefetch(Index table, std::uint16_t code) const {
    const std::size_t at = place(table, code);
    __builtin_prefetch(&states_[at]);
    const std::int32_t* slots = &slots_[at * static_cast<std::size_t>(shape_.bucket)];
    for (int i = 0; i < shape_.bucket && i < 64; i += 16) __builtin_prefetch(slots + i);
  }

  // visit(neuron) for each neuron of a bucket.
  template <typename Visit>
  void each(Index table, std::uint16_t code, const Visit& visit) const {
    const std::size_t at = place(table, code);
    const int held = State::of(__atomic_load_n(&states_[at], __ATOMIC_ACQUIRE)).held;
    const std::int32_t* slots = &slots_[at * static_cast<std::size_t>(shape_.bucket)];
    for (int i = 0; i < held; ++i) visit(__atomic_load_n(slots + i, __ATOMIC_RELAXED));
  }

  const TableShape& shape() const { return shape_; }
  Occupancy occupancy() const;
  std::size_t bytes() const { return slots_.bytes() + states_.bytes(); }

 private:
  // A bucket's state in one word.
  struct State {
    std::uint16_t held;        // slots in use, from the first on
    std::uint16_t next;        // kFifo: the slot of the oldest, once all are in use
    std::uint32_t population;  // neurons whose code this is, dropped ones too

    static State of(std::uint64_t word) {
      return {static_cast<std::uint16_t>(word), static_cast<std::uint16_t>(word >> 16),
              static_cast<std::uint32_t>(word >> 32)};
    }
    std::uint64_t word() const {
      return std::uint64_t{population} << 32 | std::uint64_t{next} << 16 | held;
    }
  };

  std::size_t place(Index table, std::uint16_t code) const {
    return static_cast<std::size_t>(table * shape_.buckets + code);
  }

  TableShape shape_;
  HugeArray<std::int32_t> slots_;    // [tables][buckets][bucket]
  HugeArray<std::uint64_t> states_;  // [tables][buckets]
};

}  // namespace mh
