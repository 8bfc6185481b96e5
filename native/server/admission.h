// Stage 3, first half: decides whether a waiting update is applied, and with which numbers.
//
// An update applies once: one whose sequence number the chunk has seen is only acknowledged. Its
// staleness is how many updates the chunk took since the version that it was computed at.
#pragma once

#include <cstdint>

#include "server/batcher.h"
#include "server/lane_context.h"

namespace mh::server {

class Admission {
 public:
  explicit Admission(LaneContext& context) : context_(context) {}

  // True if the update is to be applied; otherwise it was answered. `ahead` updates of its chunk
  // were admitted before it and are not applied yet.
  bool admit(Chunk& chunk, const Update& update, std::size_t ahead);
  // The rate that an admitted update is applied with.
  double rate(const Chunk& chunk, const Update& update, std::size_t ahead);
  // The answer to an update that was applied and left the chunk at this version.
  void acknowledge(Chunk& chunk, const Update& update, std::uint64_t version);
  // Whether the payload's contents may be used; if not, the update was refused.
  bool sound(const Chunk& chunk, const Update& update);

 private:
  bool finite(const Chunk& chunk, const Frame& frame) const;
  bool rows_exist(const Chunk& chunk, const Update& update);

  LaneContext& context_;
};

}  // namespace mh::server
