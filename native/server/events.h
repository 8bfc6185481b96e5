// What lanes tell the server's Python side about copies and peers. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace mh::server {

struct Event {
  enum class Kind {
    kInStep,    // peer, chunk, since: a joining copy has everything
    kPeerLost,  // peer, lane, 0: the connection to it broke
    kFenced,    // chunk, lease, 0: another server is its primary, under that lease or a later one
  };
  Kind kind;
  std::int64_t first, second, third;
};

class Events {
 public:
  void tell(const Event& event) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      // Nobody listens: what matters is told again when roles are given again.
      if (waiting_.size() >= kMost) waiting_.clear();
      waiting_.push_back(event);
    }
    told_.notify_one();
  }

  // What was told since the last call; waits for the first, or until there is nobody to tell more.
  std::vector<Event> wait(double timeout_s) {
    std::unique_lock<std::mutex> lock(mutex_);
    told_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                   [this] { return closed_ || !waiting_.empty(); });
    return std::exchange(waiting_, {});
  }

  void close() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      closed_ = true;
    }
    told_.notify_all();
  }

 private:
  static constexpr std::size_t kMost = std::size_t{1} << 18;

  std::mutex mutex_;
  std::condition_variable told_;
  std::vector<Event> waiting_;
  bool closed_ = false;
};

}  // namespace mh::server
