// Looking again and again for a moment before going to sleep: while one message follows another
// closely, sleeping and being woken costs both ends more than the work.
//
// Ends with the first long pause, and for a while when another thread took the processor that was
// offered to it: who sleeps is woken sooner than who waits for a turn again.
#pragma once

#include <sched.h>

#include <cstdint>

#include "wire/clock.h"

namespace mh::wire {

class Spin {
 public:
  explicit Spin(std::int64_t longest_ns) : longest_ns_(longest_ns) {}

  // How long the last wait was, asleep or not.
  void note_wait(std::int64_t ns) { last_wait_ns_ = ns; }

  // True once `ready` is; false if that is not worth looking for (any longer).
  template <typename Ready>
  bool until(std::int64_t now, const Ready& ready) {
    if (last_wait_ns_ > longest_ns_ || now < spin_from_ns_) return false;
    for (const std::int64_t end = now + longest_ns_; now < end;) {
      if (ready()) return true;
      sched_yield();
      const std::int64_t back = now_ns();
      if (back - now > longest_ns_) spin_from_ns_ = back + kBusyNs;
      now = back;
    }
    return false;
  }

 private:
  static constexpr std::int64_t kBusyNs = 200'000'000;
  const std::int64_t longest_ns_;
  std::int64_t last_wait_ns_ = 0;
  std::int64_t spin_from_ns_ = 0;  // until then the processor is busy with others
};

}  // namespace mh::wire
