// Frames made and read by hand, for tests that play the client of a chunk server.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "wire/frame.h"

namespace mh::test {

using Bytes = std::vector<std::uint8_t>;

inline wire::Header header_of(wire::Kind kind, std::uint32_t chunk, std::uint64_t client,
                              std::uint64_t sequence) {
  wire::Header h;
  h.kind = static_cast<std::uint8_t>(kind);
  h.chunk = chunk;
  h.client = client;
  h.sequence = sequence;
  h.rate = 0.5f;
  h.steps = 1;
  return h;
}

// The header with the payload's size filled in, then the payload.
inline Bytes frame_of(wire::Header header, const void* payload, std::size_t bytes) {
  header.payload_bytes = static_cast<std::uint32_t>(bytes);
  Bytes out(sizeof header + bytes);
  std::memcpy(out.data(), &header, sizeof header);
  if (bytes > 0) std::memcpy(out.data() + sizeof header, payload, bytes);
  return out;
}

inline bool write_all(int fd, const std::uint8_t* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

inline bool read_exactly(int fd, void* to, std::size_t bytes) {
  auto* data = static_cast<std::uint8_t*>(to);
  while (bytes > 0) {
    const ssize_t got = recv(fd, data, bytes, 0);
    if (got <= 0) return false;
    data += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

struct Answer {
  wire::Header header;
  Bytes payload;
  wire::Kind kind() const { return static_cast<wire::Kind>(header.kind); }
};

inline bool read_answer(int fd, Answer& answer) {
  if (!read_exactly(fd, &answer.header, sizeof answer.header)) return false;
  answer.payload.resize(answer.header.payload_bytes);
  return read_exactly(fd, answer.payload.data(), answer.payload.size());
}

}  // namespace mh::test
