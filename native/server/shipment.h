// What a round applied to chunks that have copies, and in which form it goes there.
//
// The updates of a chunk go as they came or as a snapshot of what they made of it, whichever is
// fewer bytes: many updates of one round become one. Chunks that factors updated together are
// judged together, so that factors never meet a chunk that is ahead of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/batcher.h"
#include "server/chunk_store.h"
#include "server/outbox.h"

namespace mh::server {

// Where chunks are in their histories, as an update to them names it beside the first's version:
// the lease of the first's last update, and of several a mark of all their positions.
std::uint64_t place_of(const Span& chunks);

struct Shipped {
  const Frame* frame;  // null: only what it made of the chunks can be sent
  Span chunks;
  float rate;          // that it was applied with
  std::uint64_t seen;  // where the first chunk stood before
  std::uint64_t place;
  std::vector<std::uint64_t> others;  // where the chunks behind the first stood after it

  // A payload that is not sent along is shown instead.
  Parcel parcel(bool with_payload) const;
  // Where the i-th chunk stood after it.
  std::uint64_t version(std::size_t i) const { return i == 0 ? seen + 1 : others[i - 1]; }
};

class Shipment {
 public:
  explicit Shipment(std::size_t slots) : marks_(slots) {}

  // An update is about to be counted by these chunks, after `ahead` others.
  void add(const Frame* frame, const Span& chunks, float rate, std::size_t ahead);
  // The round's updates are all here: decides their forms.
  void close();
  void clear() {
    all_.clear();
    bytes_ = 0;
  }

  const std::vector<Shipped>& all() const { return all_; }
  // Whether a chunk's updates are so many times the bytes of a snapshot of it, or more.
  bool outweighs_snapshot(const Shipped& shipped, std::uint64_t times) const;
  std::size_t bytes() const { return bytes_; }

 private:
  // Of a chunk in this round.
  struct Mark {
    std::uint32_t owner;               // the chunk that it is judged with
    bool counted;                      // among the owner's snapshots
    std::uint64_t updates, snapshots;  // bytes of both forms, at the owner
  };

  std::vector<Shipped> all_;
  std::size_t bytes_ = 0;  // of their payloads
  std::vector<Mark> marks_;  // by slot
};

}  // namespace mh::server
