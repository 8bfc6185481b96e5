// Replies to updates that are applied here but not yet by every copy that must have them.
//
// A reply leaves when the copies have the version that it waits for, or as a refusal when this
// server stops being the chunk's primary. A connection that closes meanwhile is forgotten: its
// client asks again, and the update is recognised. Held replies do not hold up those behind them.
#pragma once

#include <cstdint>
#include <vector>

#include "server/admission.h"
#include "server/lane_context.h"

namespace mh::server {

class HeldReplies {
 public:
  explicit HeldReplies(LaneContext& context) : context_(context) {}

  // Holds the reply to an update of these chunks, `ahead` updates of which will be applied before
  // the round ends. False if nothing has to be waited for.
  bool hold(const Update& update, const Span& chunks, std::size_t ahead);
  // Copies have acknowledged, or are no longer needed.
  void release(Chunk& chunk);
  // Whoever waits for this chunk is told to look for its primary elsewhere.
  void refuse(Chunk& chunk);
  void forget(const Connection& connection);

  // The connections that have replies to send since the last call.
  std::vector<Connection*> take_ready();

 private:
  struct Held {
    Connection* from = nullptr;  // null: closed meanwhile
    wire::Header request;
    const Chunk* chunk = nullptr;
    std::uint64_t version = 0;
    std::uint32_t missing = 0;  // chunks that it still waits for
    bool refused = false;
  };

  std::uint32_t take_place();
  void let_go(std::uint32_t number);
  void answer(const Held& held);

  LaneContext& context_;
  std::vector<Held> held_;
  std::vector<std::uint32_t> free_;
  std::vector<Connection*> ready_;
};

}  // namespace mh::server
