#include "sparse/tables.h"

namespace mh {
namespace {

// How far ahead of a neuron its bucket's state, and then its slot, are asked for.
constexpr Index kStateAhead = 32;
constexpr Index kSlotAhead = 12;

}  // namespace

void Tables::fill(Index table, const std::uint16_t* codes, Index n) {
  for (Index code = 0; code < shape_.buckets; ++code) {
    set_state(bucket(table, static_cast<std::uint16_t>(code)), State{});
  }
  for (Index i = 0; i < n; ++i) {
    if (i + kStateAhead < n) __builtin_prefetch(bucket(table, codes[i + kStateAhead]), 1);
    if (i + kSlotAhead < n) {
      const std::int32_t* soon = bucket(table, codes[i + kSlotAhead]);
      __builtin_prefetch(soon + kStateWords + state_of(soon).held, 1);
    }
    add(bucket(table, codes[i]), static_cast<std::int32_t>(i));
  }
}

// Where a neuron goes in a bucket without a free slot; beyond the slots: nowhere.
Index Tables::slot_in_full(const std::int32_t* bucket, State& state) const {
  if (shape_.filling == Filling::kReservoir) {
    const auto place = static_cast<std::uint64_t>(bucket - words_.data());
    return static_cast<Index>(below(mixed(shape_.seed + place, state.population), state.population));
  }
  const Index oldest = state.next;
  state.next = static_cast<std::uint16_t>((state.next + 1) % shape_.bucket);
  return oldest;
}

void Tables::remove(Index table, std::uint16_t code, std::int32_t neuron) {
  std::int32_t* words = bucket(table, code);
  State state = state_of(words);
  --state.population;
  std::int32_t* slots = words + kStateWords;
  std::int32_t* found = std::find(slots, slots + state.held, neuron);
  if (found != slots + state.held) {
    --state.held;
    state.next = 0;  // who is oldest is forgotten when the last takes the free place
    __atomic_store_n(found, slots[state.held], __ATOMIC_RELAXED);
  }
  set_state(words, state);
}

Occupancy Tables::occupancy() const {
  Occupancy sum;
  const Index buckets = shape_.tables * shape_.buckets;
  sum.slots = buckets * shape_.bucket;
  for (Index i = 0; i < buckets; ++i) {
    const State state = state_of(words_.data() + static_cast<std::size_t>(i) * stride_);
    sum.held += state.held;
    sum.dropped += static_cast<std::int64_t>(state.population) - state.held;
    sum.empty += state.population == 0;
    sum.full += state.held == shape_.bucket;
    sum.largest = std::max<std::int64_t>(sum.largest, state.population);
  }
  return sum;
}

}  // namespace mh
