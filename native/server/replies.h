// Stage 4 of a lane's round: a connection's replies, in the order of its requests but for those
// that wait for copies (held_replies.h).
//
// Several leave in one system call. Values are sent from the weights themselves, without a copy; a
// reply that the socket takes in parts may therefore carry values newer than the version it names.
// A connection whose replies are not all sent is not read from, so the queue is bounded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/lane_context.h"
#include "wire/frame.h"

namespace mh::server {

struct Reply {
  wire::Header header;
  const Chunk* chunk = nullptr;   // of values
  const float* values = nullptr;  // null: none are sent
  bool withdrawn = false;         // nothing is sent
  std::string sentence;
};

enum class Sent { kAll, kBlocked, kBroken };

class Replies {
 public:
  explicit Replies(LaneContext& context) : context_(context) {}

  // The place of a reply that is filled in until the round's end.
  std::size_t add(const wire::Header& request);
  void acknowledge(std::size_t place, std::uint64_t version);
  void give_values(std::size_t place, const Chunk& chunk, std::size_t array,
                   wire::Encoding encoding);
  void refuse(std::size_t place, wire::Refusal refusal, const std::string& sentence);
  // Whether a copy is where its primary asks.
  void say_in_step(std::size_t place, bool in_step);
  // It is sent later, at another place.
  void withdraw(std::size_t place) { replies_[place].withdrawn = true; }

  // Sends what the socket takes without waiting.
  Sent send(int fd);
  bool empty() const { return head_ == replies_.size(); }

 private:
  struct Parts;
  void gather(Parts& parts);
  void add_parts(Reply& reply, Parts& parts);
  void drop(std::size_t bytes);
  std::size_t size_of(const Reply& reply) const;

  LaneContext& context_;
  std::vector<Reply> replies_;
  std::size_t head_ = 0;       // the first that is not all sent
  std::size_t head_sent_ = 0;  // bytes of it that were
  Block encoded_;              // the values of the reply at `encoded_at_`
  std::size_t encoded_at_ = 0;
};

}  // namespace mh::server
