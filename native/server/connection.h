// One client's connection to one lane: its socket, its requests and its replies.
#pragma once

#include <unistd.h>

#include <utility>

#include "server/receiver.h"
#include "server/replies.h"

namespace mh::server {

class Connection {
 public:
  // Owns the socket from here on.
  Connection(int fd, const Sender& sender, ClientMemory memory, LaneContext& context)
      : receiver(fd, sender, std::move(memory), context), replies(context), fd_(fd) {}
  ~Connection() { close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int fd() const { return fd_; }

  Receiver receiver;
  Replies replies;
  bool blocked = false;   // the peer does not take its replies; nothing is read until it does
  bool in_round = false;  // takes part in the current round
  bool dead = false;      // to be closed at the round's end
  std::int64_t ends_at_ns = 0;  // a refused connection is closed by then, also if the peer is not

 private:
  int fd_;
};

}  // namespace mh::server
