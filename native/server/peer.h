// A connection to a server that has copies of our chunks: what is on its way there, and what was
// sent and not answered yet.
//
// The other end answers every frame, in order (follower.h), so an answer belongs to the oldest
// unanswered frame.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "server/ledger.h"
#include "server/outbox.h"
#include "server/watch.h"
#include "wire/frame.h"

namespace mh::server {

// What was sent of one chunk. A frame that concerns several has one of these for each.
struct Unanswered {
  wire::Kind kind;
  std::uint32_t slot;
  std::uint32_t lease;
  std::uint64_t version;  // that the copy has if it takes the frame
  std::uint64_t turn;     // of the copy when it was sent
  std::int64_t sent_ns;
  bool more;  // the next one belongs to the same frame
  std::shared_ptr<Block> shown;  // a payload that the other end reads from our memory
  bool late = false;             // and goes on reading when it has answered
};

class Peer : public Watched {
 public:
  Peer(int fd, int number) : Watched(fd, true), number(number) {}

  // Reads what has arrived and hands over the answers; marks the peer dead when it can't go on.
  std::vector<wire::Header> receive();

  const int number;  // the server's
  Outbox outbox;
  std::deque<Unanswered> unanswered;
  std::deque<std::uint32_t> snapshots_due;  // slots of chunks whose copy there is behind
  bool readable = false, writable = true;
  bool dropped = false;  // on purpose: nobody is told that it is gone
  bool shares = false;           // it reads payloads from our memory
  std::unique_ptr<Postbox> postbox;  // null: updates can't be posted there
  std::size_t shown_bytes = 0;   // that it may be reading
  // By slot, what it has answered and may apply later.
  std::map<std::uint32_t, std::vector<std::shared_ptr<Block>>> late;
  std::size_t late_bytes = 0;  // of those, and of what is on its way there to wait
  std::int64_t moved_ns = 0;  // when something was last sent or answered

 private:
  void parse(std::vector<wire::Header>& answers);

  std::array<std::uint8_t, 16384> inbox_;
  std::size_t filled_ = 0;
  std::size_t skip_left_ = 0;  // of a refusal's sentence
};

}  // namespace mh::server
