#include "server/peer.h"

#include <algorithm>
#include <cstring>

#include "wire/io.h"

namespace mh::server {
namespace {

constexpr std::size_t kLongestSentence = 65536;

bool is_answer(const wire::Header& h) {
  const auto kind = static_cast<wire::Kind>(h.kind);
  if (h.magic != wire::kMagic || h.version != wire::kVersion) return false;
  if (kind == wire::Kind::kAck) return h.payload_bytes == 0;
  return kind == wire::Kind::kRefused && h.payload_bytes <= kLongestSentence;
}

}  // namespace

std::vector<wire::Header> Peer::receive() {
  std::vector<wire::Header> answers;
  while (!dead) {
    iovec room{inbox_.data() + filled_, inbox_.size() - filled_};
    const wire::Moved got = wire::receive(fd(), &room, 1, /*wait=*/false);
    if (got.outcome == wire::Outcome::kNotNow) break;
    if (got.outcome != wire::Outcome::kDone) dead = true;
    filled_ += got.bytes;
    parse(answers);
    if (got.bytes < room.iov_len) break;
  }
  return answers;
}

void Peer::parse(std::vector<wire::Header>& answers) {
  std::size_t at = 0;
  for (;;) {
    const std::size_t skipped = std::min(skip_left_, filled_ - at);
    at += skipped;
    skip_left_ -= skipped;
    if (skip_left_ > 0 || filled_ - at < sizeof(wire::Header)) break;
    wire::Header header;
    std::memcpy(&header, inbox_.data() + at, sizeof header);
    at += sizeof header;
    if (!is_answer(header)) {
      dead = true;
      break;
    }
    skip_left_ = header.payload_bytes;
    answers.push_back(header);
  }
  std::memmove(inbox_.data(), inbox_.data() + at, filled_ - at);
  filled_ -= at;
}

}  // namespace mh::server
