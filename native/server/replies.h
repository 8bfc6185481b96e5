// Stage 4 of a lane's round: a connection's replies, in the order of its requests but for those
// that wait for copies (held_replies.h).
//
// Several leave in one system call. Values are sent from the weights themselves, without a copy; a
// reply that the socket takes in parts may therefore carry values newer than the version it names.
// A connection whose replies are not all sent is not read from, so the queue is bounded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/lane_context.h"
#include "server/ledger.h"
#include "wire/frame.h"

namespace mh::server {

// What a client has of a chunk: all up to a version of an era (row_changes.h).
struct Known {
  std::uint64_t era, version;
};

struct Reply {
  wire::Header header;
  const Chunk* chunk = nullptr;   // of values
  const float* values = nullptr;  // null: none are sent
  std::optional<Known> known;     // what is sent depends on it, and is found out when it is sent
  std::vector<std::uint8_t> rows;  // the payload, of rows
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
  // The rows that changed since, or all values where that is not known or no fewer bytes.
  void give_changed_rows(std::size_t place, const Chunk& chunk, const Known& known,
                         wire::Encoding encoding);
  void refuse(std::size_t place, wire::Refusal refusal, const std::string& sentence);
  // Tells a primary where it may post updates.
  void introduce(std::size_t place, const Ledger& ledger) {
    ledger.introduce(replies_[place].header);
  }
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
  void find_rows(std::size_t place);
  void take_rows(Reply& reply, wire::Encoding encoding);
  void drop(std::size_t bytes);
  std::size_t size_of(const Reply& reply) const;

  LaneContext& context_;
  std::vector<Reply> replies_;
  std::size_t head_ = 0;       // the first that is not all sent
  std::size_t head_sent_ = 0;  // bytes of it that were
  Block encoded_;              // the values of the reply at `encoded_at_`
  std::size_t encoded_at_ = 0;
  std::size_t rows_bytes_ = 0;          // of replies' rows that are not all sent
  std::vector<std::uint32_t> changed_;  // the rows of the reply at hand
  std::vector<float> gathered_;         // and their values, on the way to an encoding
};

}  // namespace mh::server
