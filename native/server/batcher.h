// Stage 2 of a lane's round: sorts frames. Updates wait in a queue per chunk, so that all of a
// chunk's updates are applied while its weights are in the cache (Adam, section 3.3.1); everything
// else gets its reply prepared.
#pragma once

#include <cstdint>
#include <vector>

#include "server/connection.h"
#include "server/lane_context.h"

namespace mh::server {

// An update that waits for its turn, and whom to answer.
struct Update {
  const Frame* frame;
  Connection* from;
  std::size_t reply;  // its place among the replies; only the last piece has one
};

class Batcher {
 public:
  explicit Batcher(LaneContext& context) : context_(context), queues_(context.store.size()) {}

  void add(Connection& from, const Frame& frame);

  // The chunks with updates, in the order in which their first one came.
  const std::vector<const ChunkShape*>& waiting() const { return waiting_; }
  std::vector<Update>& queue(const ChunkShape& shape) { return queues_[shape.slot]; }
  void clear();

 private:
  void enqueue(Connection& from, const Frame& frame, std::size_t reply);

  LaneContext& context_;
  std::vector<std::vector<Update>> queues_;
  std::vector<const ChunkShape*> waiting_;
};

}  // namespace mh::server
