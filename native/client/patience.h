// How long to wait for a server: until a deadline without progress, or until a signal.
#pragma once

#include <algorithm>
#include <chrono>

#include "client/errors.h"

namespace mh::client {

class Patience {
 public:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;

  // `check_signals` is called several times a second, also while waiting; it may throw.
  Patience(double timeout_s, void (*check_signals)())
      : timeout_(timeout_s), check_signals_(check_signals) {}

  // A single system call must not wait longer. A signal is noticed after twice this at most.
  Seconds longest_wait() const { return std::min(timeout_, Seconds(0.05)); }

  void begin() { last_moved_ = last_check_ = Clock::now(); }

  // To be called after every attempt to move bytes. Throws TimedOut if none moved for too long.
  void note(bool moved) {
    const Clock::time_point now = Clock::now();
    if (moved) last_moved_ = now;
    if (now - last_check_ >= longest_wait()) {
      last_check_ = now;
      check_signals_();
    }
    if (now - last_moved_ < timeout_) return;
    throw TimedOut("The server neither sent nor took a byte for " +
                   std::to_string(timeout_.count()) + " s.");
  }

 private:
  Seconds timeout_;
  void (*check_signals_)();
  Clock::time_point last_moved_, last_check_;
};

}  // namespace mh::client
