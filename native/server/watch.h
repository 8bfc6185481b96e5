// What a lane waits for: its sockets, and the descriptor that wakes it.
#pragma once

#include <sys/epoll.h>
#include <unistd.h>

#include <cstdint>

namespace mh::server {

// Something with a socket that a lane looks after: a client's or a peer's connection.
class Watched {
 public:
  // Owns the socket from here on.
  Watched(int fd, bool leads_to_peer) : to_peer(leads_to_peer), fd_(fd) {}
  ~Watched() { close(fd_); }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  int fd() const { return fd_; }

  const bool to_peer;    // one of ours that leads to another server: a Peer; else a Connection
  bool dead = false;     // to be closed at the round's end
  bool muted = false;    // neither read from nor written to, as if the network were cut

 private:
  friend class Watch;
  int fd_;
  std::uint32_t events_ = 0;
  bool added_ = false;
};

class Watch {
 public:
  explicit Watch(int epoll) : epoll_(epoll) {}

  // Events of interest from now on. A socket that can't be watched is dead.
  void set(Watched& watched, std::uint32_t events) {
    const bool wanted = !watched.muted;
    if (!wanted && !watched.added_) return;
    if (wanted && watched.added_ && watched.events_ == events) return;
    const int operation = !wanted          ? EPOLL_CTL_DEL
                          : watched.added_ ? EPOLL_CTL_MOD
                                           : EPOLL_CTL_ADD;
    epoll_event event{};
    event.events = events;
    event.data.ptr = &watched;
    if (epoll_ctl(epoll_, operation, watched.fd_, &event) != 0) watched.dead = true;
    watched.events_ = events;
    watched.added_ = wanted;
  }

  std::uint32_t events(const Watched& watched) const { return watched.events_; }

 private:
  int epoll_;
};

}  // namespace mh::server
