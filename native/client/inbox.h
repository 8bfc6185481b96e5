// Replies on their way in: headers through a small buffer, payloads straight to where they belong.
//
// Only the part of a payload that arrived together with its header is copied. A read asks for the
// rest of the payload at hand and for the headers behind it at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "wire/frame.h"
#include "wire/io.h"

namespace mh::client {

class Inbox {
 public:
  wire::Moved receive(int fd, bool wait) {
    compact();
    iovec parts[2] = {{to_, missing_}, {buffer_.data() + end_, buffer_.size() - end_}};
    const bool header_only = missing_ == 0;
    const wire::Moved got = wire::receive(fd, parts + header_only, 2 - header_only, wait);
    const std::size_t direct = got.bytes < missing_ ? got.bytes : missing_;
    to_ += direct;
    missing_ -= direct;
    end_ += got.bytes - direct;
    return got;
  }

  // Takes the next header, if it has arrived as a whole.
  bool take_header(wire::Header& header) {
    if (end_ - begin_ < sizeof header) return false;
    std::memcpy(&header, buffer_.data() + begin_, sizeof header);
    begin_ += sizeof header;
    return true;
  }

  // The payload of the header just taken goes to `to`.
  void expect_payload(std::uint8_t* to, std::size_t bytes) {
    const std::size_t here = end_ - begin_ < bytes ? end_ - begin_ : bytes;
    if (here > 0) std::memcpy(to, buffer_.data() + begin_, here);
    begin_ += here;
    to_ = to + here;
    missing_ = bytes - here;
  }
  bool payload_complete() const { return missing_ == 0; }

 private:
  // Less than a header is left when a read is due, so moving it costs nothing.
  void compact() {
    if (begin_ > 0) std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }

  std::array<std::uint8_t, 16384> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  std::uint8_t* to_ = nullptr;
  std::size_t missing_ = 0;
};

}  // namespace mh::client
