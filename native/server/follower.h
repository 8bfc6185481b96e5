// A copy's side of replication: does what the chunk's primary says, in the order in which it comes.
//
// THE FENCE is here: a primary under a lower lease than the highest known is refused, so that one
// that was paused or cut off while another took over can't get its updates acknowledged by the
// copies that it needs (docs/protocol.md).
#pragma once

#include <vector>

#include "server/apply.h"
#include "server/connection.h"
#include "server/lane_context.h"

namespace mh::server {

class Follower {
 public:
  Follower(LaneContext& context, Applier& applier)
      : context_(context), applier_(applier), admission_(context) {}

  void add(Connection& from, const Frame& frame);
  // Nothing more comes in this round.
  void finish();

 private:
  bool continues_run(const Connection& from, const Frame& frame) const;
  Span chunks_of(const Frame& frame) const;
  bool obey(Connection& from, const Frame& frame, std::size_t reply);
  void set_aside(Connection& from, const Frame& frame, std::size_t reply);
  void share(Connection& from, const Frame& frame, std::size_t reply);
  void align(Connection& from, const Frame& frame, std::size_t reply);
  void take_snapshot(Connection& from, const Frame& frame, std::size_t reply);

  LaneContext& context_;
  Applier& applier_;
  Admission admission_;
  std::vector<Update> run_;  // updates of one chunk that follow each other
};

}  // namespace mh::server
