// The index as Python holds it: with a team of threads of its own for choosing.
#pragma once

#include <memory>
#include <mutex>

#include "sparse/lsh_index.h"

namespace mh {

class BoundIndex : public LshIndex {
 public:
  using LshIndex::LshIndex;

  // Calls f(team) with a team of that size; callers wait for each other.
  template <typename F>
  void with_team(int threads, const F& f) {
    const std::lock_guard<std::mutex> lock(team_mutex_);
    if (!team_ || team_->size() != threads) team_ = std::make_unique<Team>(threads);
    f(*team_);
  }

 private:
  std::mutex team_mutex_;
  std::unique_ptr<Team> team_;
};

}  // namespace mh
