// Reading and writing a connected socket: system calls with their many endings made few.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>

namespace mh::wire {

enum class Outcome {
  kDone,     // `bytes` were moved, at least one
  kNotNow,   // nothing could be moved without waiting (longer)
  kClosed,   // the peer closed its end
  kBroken,   // `error` says why
};

struct Moved {
  Outcome outcome;
  std::size_t bytes = 0;
  int error = 0;
};

inline Moved moved(ssize_t result) {
  if (result > 0) return {Outcome::kDone, static_cast<std::size_t>(result)};
  if (result == 0) return {Outcome::kClosed};
  const int error = errno;
  const bool later = error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
  return {later ? Outcome::kNotNow : Outcome::kBroken, 0, error};
}

// Gathers and sends what the socket takes at once. A peer that is gone raises no signal.
inline Moved send_now(int fd, iovec* parts, std::size_t count) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  return moved(::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL));
}

// Scatters what has arrived; with `wait` blocks for the first byte, up to the socket's SO_RCVTIMEO
// (the descriptor must be in blocking mode).
inline Moved receive(int fd, iovec* parts, std::size_t count, bool wait) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  return moved(::recvmsg(fd, &message, wait ? 0 : MSG_DONTWAIT));
}

}  // namespace mh::wire
