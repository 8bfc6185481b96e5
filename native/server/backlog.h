// Updates that a copy has and has not applied.
//
// They lie in their primary's memory, which is mapped here and so outlives the primary's process,
// and are acknowledged as they come. A snapshot makes those before it needless, so that a copy takes
// in the result of many updates at the cost of one. They are applied, in order, when the contents
// are needed: before this server becomes the primary, before anything else is done to the chunk, and
// before the memory may be used for something else (docs/protocol.md).
#pragma once

#include <memory>
#include <vector>

#include "server/apply.h"
#include "server/lane_context.h"
#include "server/receiver.h"

namespace mh::server {

class Backlog {
 public:
  Backlog(LaneContext& context, Applier& applier)
      : context_(context), applier_(applier), late_(context.store.size()) {}

  // The chunk counts the update among its own from now on.
  void add(Chunk& chunk, const Frame& frame, const Receiver& from);
  // Makes the chunk what it is said to be.
  void apply(Chunk& chunk);
  // The chunk's contents were replaced, by some that need nothing of what waits.
  void drop(const Chunk& chunk) { late_[chunk.shape->slot].clear(); }
  // What another server shows may change from now on: applies all of it.
  void apply_shown_by(int peer);

 private:
  struct Late {
    Frame frame;
    std::shared_ptr<const ClientMemory> memory;  // in which its payload lies
    int peer;
  };

  LaneContext& context_;
  Applier& applier_;
  std::vector<std::vector<Late>> late_;  // by slot
};

}  // namespace mh::server
