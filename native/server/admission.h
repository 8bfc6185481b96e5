// Stage 3, first half: decides whether a waiting update is applied, and with which numbers.
//
// An update applies once: one whose sequence number the chunk has seen is only acknowledged. Its
// staleness is how many updates the chunk took since the version that it was computed at. What a
// primary sends to a copy was decided there: it applies at one place in the chunk's history only.
#pragma once

#include <cstdint>
#include <optional>

#include "server/batcher.h"
#include "server/lane_context.h"

namespace mh::server {

class Admission {
 public:
  explicit Admission(LaneContext& context) : context_(context) {}

  // True if the update is to be applied by those chunks that have not applied it before, and every
  // one remembers it from now on; otherwise it was answered. `ahead` updates of the chunks were
  // admitted before it and are not applied yet.
  bool admit(const Span& chunks, const Update& update, std::size_t ahead);
  // The same for one that the chunk's primary posted, which nobody waits for an answer to.
  bool admit_posted(Chunk& chunk, const Frame& frame);
  // The rate that an admitted update is applied with.
  double rate(const Chunk& chunk, const Update& update, std::size_t ahead);
  // The answer to an update that these chunks have applied; at once, or when their copies have too.
  void acknowledge(const Span& chunks, const Update& update, std::size_t ahead = 0);

 private:
  bool take_replay(const Span& chunks, const Update& update, std::size_t ahead);
  bool in_step(const Span& chunks, const Update& update, std::size_t ahead);
  bool sound(const Chunk& chunk, const Update& update);
  bool finite(const Chunk& chunk, const Frame& frame) const;
  std::optional<bool> found_in_passing(const Chunk& chunk, const Frame& frame) const;
  bool rows_exist(const Chunk& chunk, const Update& update);

  LaneContext& context_;
};

}  // namespace mh::server
