// The requests of a call that wait for an answer, at most `window` of them.
#pragma once

#include <cstddef>
#include <vector>

#include "client/request.h"

namespace mh::client {

class Window {
 public:
  explicit Window(std::size_t size) : slots_(size) {}

  void begin(std::size_t requests) {
    requests_ = requests;
    oldest_ = next_ = 0;
  }

  bool all_prepared() const { return next_ == requests_; }
  bool all_answered() const { return oldest_ == requests_; }
  bool open() const { return !all_prepared() && next_ - oldest_ < slots_.size(); }
  std::size_t half() const { return (slots_.size() + 1) / 2; }
  std::size_t unanswered() const { return requests_ - oldest_; }

  // The number of the next request; its slot was cleared for it.
  std::size_t take_next() {
    at(next_).reset();
    return next_++;
  }

  Request& at(std::size_t i) { return slots_[i % slots_.size()]; }

  // The number of the request that a reply answers, or kNone. Servers answer more or less in
  // order, so the search is short.
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::size_t find(const wire::Header& reply) {
    for (std::size_t i = oldest_; i < next_; ++i) {
      const Request& request = at(i);
      if (!request.answered && request.header.sequence == reply.sequence &&
          request.header.chunk == reply.chunk) {
        return i;
      }
    }
    return kNone;
  }

  void mark_answered(std::size_t i) {
    at(i).answered = true;
    while (oldest_ < next_ && at(oldest_).answered) ++oldest_;
  }

 private:
  std::vector<Request> slots_;
  std::size_t requests_ = 0;
  std::size_t oldest_ = 0;  // all before it are answered
  std::size_t next_ = 0;    // to be prepared
};

}  // namespace mh::client
