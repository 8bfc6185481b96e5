#include "sparse/tables.h"

#include <algorithm>

#include "sparse/mixing.h"

namespace mh {

Tables::Tables(const TableShape& shape)
    : shape_(shape),
      slots_(static_cast<std::size_t>(shape.tables * shape.buckets * shape.bucket)),
      states_(static_cast<std::size_t>(shape.tables * shape.buckets)) {}

void Tables::insert(Index table, std::uint16_t code, std::int32_t neuron) {
  const std::size_t at = place(table, code);
  std::int32_t* slots = &slots_[at * static_cast<std::size_t>(shape_.bucket)];
  State state = State::of(__atomic_load_n(&states_[at], __ATOMIC_RELAXED));
  ++state.population;
  std::uint64_t slot = state.held;
  if (state.held < shape_.bucket) {
    ++state.held;
  } else if (shape_.filling == Filling::kFifo) {
    slot = state.next;
    state.next = static_cast<std::uint16_t>((state.next + 1) % shape_.bucket);
  } else {
    slot = below(mixed(shape_.seed + at, state.population), state.population);
  }
  if (slot < static_cast<std::uint64_t>(shape_.bucket)) {
    __atomic_store_n(slots + slot, neuron, __ATOMIC_RELAXED);
  }
  // A reader that sees one more slot in use must find the neuron in it.
  __atomic_store_n(&states_[at], state.word(), __ATOMIC_RELEASE);
}

void Tables::remove(Index table, std::uint16_t code, std::int32_t neuron) {
  const std::size_t at = place(table, code);
  std::int32_t* slots = &slots_[at * static_cast<std::size_t>(shape_.bucket)];
  State state = State::of(__atomic_load_n(&states_[at], __ATOMIC_RELAXED));
  --state.population;
  std::int32_t* found = std::find(slots, slots + state.held, neuron);
  if (found != slots + state.held) {
    --state.held;
    state.next = 0;  // who is oldest is forgotten when the last takes the free place
    __atomic_store_n(found, slots[state.held], __ATOMIC_RELAXED);
  }
  __atomic_store_n(&states_[at], state.word(), __ATOMIC_RELAXED);
}

Occupancy Tables::occupancy() const {
  Occupancy sum;
  sum.slots = static_cast<std::int64_t>(slots_.size());
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const State state = State::of(__atomic_load_n(&states_[i], __ATOMIC_RELAXED));
    sum.held += state.held;
    sum.dropped += static_cast<std::int64_t>(state.population) - state.held;
    sum.empty += state.population == 0;
    sum.full += state.held == shape_.bucket;
    sum.largest = std::max<std::int64_t>(sum.largest, state.population);
  }
  return sum;
}

}  // namespace mh
