// What a lane counts about its work. One thread writes, any thread may read.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace mh::server {

// Written by one thread only, so adding needs no locked instruction.
class Counter {
 public:
  void add(std::uint64_t amount = 1) { set(value() + amount); }
  void set(std::uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  void raise_to(std::uint64_t value) {
    if (value > this->value()) set(value);
  }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

constexpr std::size_t kStalenessBins = 65;  // 0 to 63 updates, then 64 and more
constexpr std::size_t kRefusals = 12;       // numbers of wire::Refusal; 0 is not used

struct Counters {
  Counter updates, pushed_bytes, pulled_bytes, frames, replays, busy_ns, rounds, batched_max;
  Counter connections, waiting_bytes, blocked_replies;
  Counter replicated_updates, replicated_bytes, snapshots_sent;
  Counter late_updates;  // that a copy here has acknowledged before it applied them
  Counter posted_updates;  // that a copy elsewhere had without a message
  Counter held_replies;  // at the moment
  std::array<Counter, kRefusals> refused;
  std::array<Counter, kStalenessBins> staleness;
};

}  // namespace mh::server
