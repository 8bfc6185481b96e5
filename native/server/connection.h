// A connection to one lane, of a client or of another server: its requests and its replies.
#pragma once

#include <memory>
#include <utility>

#include "server/ledger.h"
#include "server/receiver.h"
#include "server/replies.h"
#include "server/watch.h"

namespace mh::server {

class Connection : public Watched {
 public:
  Connection(int fd, const Sender& sender, ClientMemory memory, LaneContext& context)
      : Watched(fd, false),
        receiver(fd, sender, std::move(memory), context),
        replies(context) {}

  Receiver receiver;
  Replies replies;
  std::unique_ptr<Ledger> ledger;  // of a server on the same machine, which posts updates there
  bool blocked = false;   // the peer does not take its replies; nothing is read until it does
  bool in_round = false;  // takes part in the current round
  std::size_t held = 0;   // replies that wait for copies
  std::int64_t ends_at_ns = 0;  // a refused connection is closed by then, also if the peer is not

  bool from_peer() const { return receiver.sender().peer >= 0; }
  // So much is unanswered that nothing more is read.
  bool full() const { return held >= kMaxFrames; }
};

}  // namespace mh::server
