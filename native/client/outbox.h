// Requests on their way out: several small ones leave in one system call, payloads uncopied.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>

#include "client/request.h"
#include "wire/io.h"

namespace mh::client {

class Outbox {
 public:
  bool empty() const { return first_ == end_; }
  bool has_room() const { return end_ + 1 + kPayloadParts <= parts_.size(); }

  // The request must stay where it is until the outbox is empty.
  void add(Request& request) {
    parts_[end_++] = {&request.header, sizeof request.header};
    for (int i = 0; i < request.part_count; ++i) parts_[end_++] = request.parts[i];
  }

  // Sends what the socket takes at once.
  wire::Moved send(int fd) {
    const wire::Moved sent = wire::send_now(fd, parts_.data() + first_, end_ - first_);
    drop(sent.bytes);
    return sent;
  }

 private:
  void drop(std::size_t bytes) {
    while (first_ < end_ && bytes >= parts_[first_].iov_len) bytes -= parts_[first_++].iov_len;
    if (first_ == end_) {
      first_ = end_ = 0;
    } else {
      parts_[first_].iov_base = static_cast<char*>(parts_[first_].iov_base) + bytes;
      parts_[first_].iov_len -= bytes;
    }
  }

  std::array<iovec, 64> parts_;
  std::size_t first_ = 0, end_ = 0;
};

}  // namespace mh::client
