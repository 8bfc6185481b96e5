// Updates that a copy has and has not applied.
//
// They lie in their primary's memory, which is mapped here and so outlives the primary's process,
// and are acknowledged as they come, or were posted (ledger.h) and are found when somebody looks. A
// snapshot makes those before it needless, so that a copy takes in the result of many updates at the
// cost of one. They are applied, in order, when the contents are needed: before this server becomes
// the primary, before anything else is done to the chunk, and before the memory may be used for
// something else (docs/protocol.md).
#pragma once

#include <memory>
#include <vector>

#include "server/admission.h"
#include "server/apply.h"
#include "server/connection.h"
#include "server/lane_context.h"
#include "server/receiver.h"

namespace mh::server {

class Backlog {
 public:
  Backlog(LaneContext& context, Applier& applier)
      : context_(context),
        applier_(applier),
        admission_(context),
        late_(context.store.size()),
        pages_(context.store.size()) {}

  // The chunk counts the update among its own from now on.
  void add(Chunk& chunk, const Frame& frame, const Receiver& from);
  // The sender may post updates of the chunk, under the lease that the chunk is known under.
  void open(const Chunk& chunk, Connection& from);
  // The chunk counts what was posted until now.
  void take_posted(Chunk& chunk);
  // And nothing more is posted. Comes before anything is done to the chunk but by its own primary,
  // and before its role or lease changes.
  void close(Chunk& chunk);
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

  // Where updates of a chunk may be posted.
  struct Page {
    Connection* from = nullptr;  // null: nowhere
    std::size_t taken = 0;
  };

  void take(Chunk& chunk, std::size_t posted);

  LaneContext& context_;
  Applier& applier_;
  Admission admission_;
  std::vector<std::vector<Late>> late_;  // by slot
  std::vector<Page> pages_;              // by slot
};

}  // namespace mh::server
