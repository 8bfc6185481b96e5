#include "server/replies.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "wire/codec.h"
#include "wire/io.h"

namespace mh::server {

using wire::Encoding;
using wire::Header;
using wire::Kind;

// Rows are gathered for so many bytes of replies at a time, which leave in one system call.
constexpr std::size_t kRowsAtOnce = std::size_t{256} << 10;

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

void Replies::give_changed_rows(std::size_t place, const Chunk& chunk, const Known& known,
                                Encoding encoding) {
  Reply& reply = replies_[place];
  reply.header.flags = wire::with_encoding(0, encoding);
  reply.chunk = &chunk;
  reply.known = known;
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
    if (replies_[i].known) {
      if (rows_bytes_ >= kRowsAtOnce) return;
      find_rows(i);
    }
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
  if (reply.values && !begun) {
    reply.header.seen = reply.chunk->version();
    reply.header.place = reply.chunk->row_changes.era();
  }
  parts.add(&reply.header, sizeof reply.header);
  if (reply.header.payload_bytes == 0) return;
  const void* body = reply.sentence.data();
  if (!reply.rows.empty()) body = reply.rows.data();
  if (reply.values) {
    const bool plain = wire::encoding_of(reply.header.flags) == Encoding::kFloat32;
    body = plain ? static_cast<const void*>(reply.values) : encoded_.data();
  }
  parts.add(body, reply.header.payload_bytes);
}

// Whichever is fewer bytes: the rows that changed, or everything.
void Replies::find_rows(std::size_t place) {
  Reply& reply = replies_[place];
  const Known known = *std::exchange(reply.known, std::nullopt);
  const Chunk& chunk = *reply.chunk;
  const ChunkShape& shape = *chunk.shape;
  const Encoding encoding = wire::encoding_of(reply.header.flags);
  if (known.era == 0 || known.era != chunk.row_changes.era()) {
    return give_values(place, chunk, 0, encoding);
  }
  chunk.row_changes.since(known.version, changed_);
  const std::size_t floats = changed_.size() * shape.row_floats;
  const std::size_t bytes =
      changed_.size() * sizeof(std::uint32_t) + wire::encoded_bytes(encoding, floats);
  if (bytes >= wire::encoded_bytes(encoding, shape.floats())) {
    return give_values(place, chunk, 0, encoding);
  }
  reply.header.kind = static_cast<std::uint8_t>(Kind::kRowValues);
  reply.header.seen = chunk.version();
  reply.header.place = known.era;
  reply.header.count = static_cast<std::uint32_t>(changed_.size());
  reply.header.payload_bytes = static_cast<std::uint32_t>(bytes);
  take_rows(reply, encoding);
  rows_bytes_ += bytes;
  context_.counters.pulled_bytes.add(bytes);
}

void Replies::take_rows(Reply& reply, Encoding encoding) {
  const std::size_t width = reply.chunk->shape->row_floats;
  const std::size_t numbers_bytes = changed_.size() * sizeof(std::uint32_t);
  reply.rows.resize(reply.header.payload_bytes);
  if (changed_.empty()) return;
  std::memcpy(reply.rows.data(), changed_.data(), numbers_bytes);
  const bool plain = encoding == Encoding::kFloat32;
  if (!plain) gathered_.resize(changed_.size() * width);
  std::uint8_t* to = plain ? reply.rows.data() + numbers_bytes
                           : reinterpret_cast<std::uint8_t*>(gathered_.data());
  for (const std::uint32_t row : changed_) {
    std::memcpy(to, reply.chunk->weights + row * width, width * sizeof(float));
    to += width * sizeof(float);
  }
  if (plain) return;
  wire::encode(encoding, gathered_.data(), gathered_.size(), 0, reply.rows.data() + numbers_bytes);
}

std::size_t Replies::size_of(const Reply& reply) const {
  if (reply.withdrawn) return 0;
  return sizeof reply.header + reply.header.payload_bytes;
}

void Replies::drop(std::size_t bytes) {
  head_sent_ += bytes;
  while (head_ < replies_.size() && head_sent_ >= size_of(replies_[head_])) {
    head_sent_ -= size_of(replies_[head_]);
    rows_bytes_ -= replies_[head_].rows.size();
    replies_[head_].rows = {};
    ++head_;
  }
}

}  // namespace mh::server
