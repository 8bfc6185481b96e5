// What the stages of one lane share. Everything in it belongs to the lane's thread, except the
// layout, which nobody changes.
#pragma once

#include "server/block_pool.h"
#include "server/chunk_store.h"
#include "server/counters.h"
#include "server/layout.h"

namespace mh::server {

struct ServerSettings {
  std::size_t max_payload_bytes = std::size_t{64} << 20;
  bool refuse_nonfinite = true;
  bool scale_by_staleness = false;  // divide an update's rate by how many updates it missed
  bool pin = true;                  // to a NUMA node, where there are several
  // Other servers may have copies: nothing is held before that is asked for, and no update is
  // applied before it is here as a whole.
  bool replicated = false;
};

class Backlog;
class HeldReplies;
class Replication;

struct LaneContext {
  const ServerSettings& settings;
  const Layout& layout;
  ChunkStore& store;
  BlockPool& pool;
  Counters& counters;
  HeldReplies* held = nullptr;
  Replication* replication = nullptr;
  Backlog* backlog = nullptr;
  Arena* arena = nullptr;  // of a server with copies elsewhere
};

}  // namespace mh::server
