#include "server/replies.h"

#include <algorithm>

#include "wire/codec.h"
#include "wire/io.h"

namespace mh::server {

using wire::Encoding;
using wire::Header;
using wire::Kind;

struct Replies::Parts {
  static constexpr std::size_t kMost = 64;
  iovec list[kMost];
  std::size_t count = 0;
  std::size_t skip = 0;  // bytes that were sent before

  bool full() const { return count + 2 > kMost; }
  void add(const void* data, std::size_t bytes) {
    const std::size_t gone = std::min(skip, bytes);
    skip -= gone;
    if (gone == bytes) return;
    list[count++] = {const_cast<char*>(static_cast<const char*>(data)) + gone, bytes - gone};
  }
};

std::size_t Replies::add(const Header& request) {
  Reply& reply = replies_.emplace_back();
  reply.header = Header{};
  reply.header.kind = static_cast<std::uint8_t>(Kind::kAck);
  reply.header.chunk = request.chunk;
  reply.header.lease = request.lease;
  reply.header.client = request.client;
  reply.header.sequence = request.sequence;
  return replies_.size() - 1;
}

void Replies::acknowledge(std::size_t place, std::uint64_t version) {
  replies_[place].header.seen = version;
}

void Replies::give_values(std::size_t place, const Chunk& chunk, std::size_t array,
                          Encoding encoding) {
  Reply& reply = replies_[place];
  const std::size_t bytes = wire::encoded_bytes(encoding, chunk.shape->floats());
  reply.header.kind = static_cast<std::uint8_t>(Kind::kValues);
  reply.header.flags = wire::with_encoding(0, encoding);
  reply.header.payload_bytes = static_cast<std::uint32_t>(bytes);
  reply.header.steps = static_cast<std::uint32_t>(chunk.begun);
  reply.chunk = &chunk;
  reply.values = chunk.array(array);
  context_.counters.pulled_bytes.add(bytes);
}

void Replies::refuse(std::size_t place, wire::Refusal refusal, const std::string& sentence) {
  Reply& reply = replies_[place];
  reply.header.kind = static_cast<std::uint8_t>(Kind::kRefused);
  reply.header.count = static_cast<std::uint32_t>(refusal);
  reply.header.payload_bytes = static_cast<std::uint32_t>(sentence.size());
  reply.values = nullptr;
  reply.sentence = sentence;
  context_.counters.refused[static_cast<std::size_t>(refusal)].add();
}

void Replies::say_in_step(std::size_t place, bool in_step) {
  replies_[place].header.count = in_step ? 1 : 0;
}

Sent Replies::send(int fd) {
  for (drop(0); !empty();) {
    Parts parts;
    gather(parts);
    const wire::Moved sent = wire::send_now(fd, parts.list, parts.count);
    if (sent.outcome == wire::Outcome::kNotNow) return Sent::kBlocked;
    if (sent.outcome != wire::Outcome::kDone) return Sent::kBroken;
    drop(sent.bytes);
  }
  replies_.clear();
  head_ = 0;
  encoded_.release();
  return Sent::kAll;
}

void Replies::gather(Parts& parts) {
  parts.skip = head_sent_;
  bool encoding = false;  // there is one block for encoded values: one such reply at a time
  for (std::size_t i = head_; i < replies_.size() && !parts.full(); ++i) {
    Reply& reply = replies_[i];
    const bool encoded =
        reply.values && wire::encoding_of(reply.header.flags) != Encoding::kFloat32;
    if (encoded && encoding) return;
    encoding |= encoded;
    if (encoded && (encoded_.bytes() == 0 || encoded_at_ != i)) {
      encoded_ = context_.pool.take(reply.header.payload_bytes);
      encoded_at_ = i;
      wire::encode(wire::encoding_of(reply.header.flags), reply.values,
                   reply.chunk->shape->floats(), 0, encoded_.data());
    }
    add_parts(reply, parts);
  }
}

void Replies::add_parts(Reply& reply, Parts& parts) {
  if (reply.withdrawn) return;
  const bool begun = &reply == &replies_[head_] && head_sent_ > 0;
  if (reply.values && !begun) reply.header.seen = reply.chunk->version();
  parts.add(&reply.header, sizeof reply.header);
  if (reply.header.payload_bytes == 0) return;
  const void* body = reply.sentence.data();
  if (reply.values) {
    const bool plain = wire::encoding_of(reply.header.flags) == Encoding::kFloat32;
    body = plain ? static_cast<const void*>(reply.values) : encoded_.data();
  }
  parts.add(body, reply.header.payload_bytes);
}

std::size_t Replies::size_of(const Reply& reply) const {
  if (reply.withdrawn) return 0;
  return sizeof reply.header + reply.header.payload_bytes;
}

void Replies::drop(std::size_t bytes) {
  head_sent_ += bytes;
  while (head_ < replies_.size() && head_sent_ >= size_of(replies_[head_])) {
    head_sent_ -= size_of(replies_[head_]);
    ++head_;
  }
}

}  // namespace mh::server
