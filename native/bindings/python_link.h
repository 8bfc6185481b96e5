// A link as Python holds it: the memory it reads is kept alive, and any thread may close it.
//
// Whether a call is running is noted with the GIL held, at its start and at its end, so that no two
// threads can be in one; the call itself runs without the GIL.
#pragma once

#include <nanobind/nanobind.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>

#include "bindings/link_arguments.h"

namespace mh {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Signals are handled in the main thread only; the others need not take the GIL to find none.
inline void check_signals() {
  if (::syscall(SYS_gettid) != ::getpid()) return;
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

inline bool is_stream_socket(int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  return ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

class PythonLink {
 public:
  PythonLink(int fd, std::uint64_t client, std::size_t window, double timeout_s,
             const std::optional<Bytes>& own, const std::optional<Bytes>& values)
      : own_(own), values_(values) {
    if (window < 1) refuse("The window is 0; expected at least 1.");
    if (!(timeout_s > 0.0 && std::isfinite(timeout_s))) {
      refuse("The timeout is " + std::to_string(timeout_s) + " s; expected more than 0.");
    }
    if (!is_stream_socket(fd)) {
      refuse("File descriptor " + std::to_string(fd) + " is not a connected stream socket.");
    }
    link_.emplace(fd, client::LinkSettings{client, window, timeout_s, memory_of(own),
                                           memory_of(values), &check_signals});
  }

  // Runs `body(link)` without the GIL.
  template <typename Body>
  auto call(const Body& body) {
    const Busy busy(*this);
    const nb::gil_scoped_release release;
    return body(*link_);
  }

  void close() {
    closed_ = true;
    if (!link_) return;
    if (busy_) {
      link_->hang_up();  // the call ends soon, and closes
    } else {
      remember();
      link_.reset();
    }
  }

  client::Link& link() {
    if (!link_ || closed_) throw client::ConnectionLost("This link was closed.");
    return *link_;
  }
  double waited_s() const { return link_ ? link_->waited_s() : waited_s_; }
  client::Traffic traffic() const { return link_ ? link_->traffic() : traffic_; }

 private:
  struct Busy {
    explicit Busy(PythonLink& l) : owner(l) {
      owner.link();
      if (owner.busy_) throw std::runtime_error("Another thread is using this link.");
      owner.busy_ = true;
    }
    ~Busy() {
      owner.busy_ = false;
      if (owner.closed_) owner.close();
    }
    PythonLink& owner;
  };

  static client::Memory memory_of(const std::optional<Bytes>& array) {
    if (!array) return {};
    return {array->data(), array->size()};
  }
  void remember() {
    waited_s_ = link_->waited_s();
    traffic_ = link_->traffic();
  }

  std::optional<Bytes> own_, values_;  // kept alive
  std::optional<client::Link> link_;
  bool busy_ = false, closed_ = false;
  double waited_s_ = 0.0;
  client::Traffic traffic_;
};

}  // namespace mh
