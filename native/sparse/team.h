// A team of threads that run the same function together, again and again.
//
// The caller is thread 0; the others are started with the team and end with it. Between two calls
// they spin for some microseconds, since the phases of a training step follow each other closely,
// and then sleep. One call runs at a time: a team serves one thread. A process that was forked off
// has none of its parent's threads, so a team that finds itself in another process starts anew.
#pragma once

#include <memory>

#include "kernels/kernel_table.h"

namespace mh {

class Team {
 public:
  // As many threads as asked for, at least 1, the caller included.
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // Runs f(thread) for thread 0 to size() - 1, each on its own thread, and waits for all of them.
  // Rethrows the first exception that one of them threw, once all have ended.
  template <typename F>
  void run(const F& f) {
    run_job({&f, [](const void* self, int thread) { (*static_cast<const F*>(self))(thread); }});
  }

 private:
  struct Job {
    const void* self;
    void (*call)(const void* self, int thread);
  };
  class Crew;
  void run_job(Job job);

  int size_;
  long process_ = 0;
  std::unique_ptr<Crew> crew_;  // started by the first run, in the process that it is for
};

// The part of n pieces of work that falls to one thread: contiguous, in order, even to within one.
struct Share {
  Index begin, end;
};
inline Share share_of(Index n, int thread, int threads) {
  const Index each = n / threads, more = n % threads;
  const Index begin = thread * each + (thread < more ? thread : more);
  return {begin, begin + each + (thread < more ? 1 : 0)};
}

}  // namespace mh
