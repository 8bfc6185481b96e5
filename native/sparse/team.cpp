#include "sparse/team.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mh {
namespace {

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

int usable_processors() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

class Team::Crew {
 public:
  explicit Crew(int helpers) : spin_(helpers < usable_processors()) {
    threads_.reserve(static_cast<std::size_t>(helpers));
    try {
      for (int i = 0; i < helpers; ++i) threads_.emplace_back([this, i] { serve(i + 1); });
    } catch (...) {  // the system has no more threads
      dismiss();
      throw;
    }
  }

  ~Crew() { dismiss(); }

  void run(Job job) {
    job_ = job;
    failure_ = nullptr;
    working_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
    announce();
    perform(0);
    wait_until([this] { return working_.load(std::memory_order_seq_cst) == 0; }, idle_);
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  // Those who wait say so before they look a last time, those who change something change it
  // before they look for sleepers; both in the one order of seq_cst, so that nobody oversleeps.
  struct Sleepers {
    std::atomic<int> count{0};
    std::condition_variable wake;
  };

  void wake(Sleepers& sleepers) {
    if (sleepers.count.load(std::memory_order_seq_cst) == 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    sleepers.wake.notify_all();
  }

  template <typename Condition>
  void wait_until(const Condition& condition, Sleepers& sleepers) {
    if (spin_) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
      do {
        for (int i = 0; i < 32; ++i) {
          if (condition()) return;
          pause();
        }
      } while (std::chrono::steady_clock::now() < end);
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers.count.fetch_add(1, std::memory_order_seq_cst);
    sleepers.wake.wait(lock, condition);
    sleepers.count.fetch_sub(1, std::memory_order_relaxed);
  }

  void dismiss() {
    closing_ = true;
    announce();
    for (std::thread& thread : threads_) thread.join();
  }

  void announce() {
    round_.fetch_add(1, std::memory_order_seq_cst);
    wake(resting_);
  }

  void serve(int thread) {
    for (unsigned seen = 0;;) {
      wait_until([this, seen] { return round_.load(std::memory_order_seq_cst) != seen; }, resting_);
      ++seen;
      if (closing_) return;
      perform(thread);
      if (working_.fetch_sub(1, std::memory_order_seq_cst) == 1) wake(idle_);
    }
  }

  void perform(int thread) {
    try {
      job_.call(job_.self, thread);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }

  const bool spin_;  // pointless where the one waited for has no processor to run on
  bool closing_ = false;
  Job job_{};
  std::exception_ptr failure_;
  std::atomic<unsigned> round_{0};
  std::atomic<int> working_{0};
  std::mutex mutex_;
  Sleepers resting_;  // helpers between two rounds
  Sleepers idle_;     // the caller, done with its own part
  std::vector<std::thread> threads_;
};

Team::Team(int threads) : size_(threads < 1 ? 1 : threads) {}

Team::~Team() {
  // Threads of the parent process can't be joined here, nor their mutexes trusted.
  if (crew_ && process_ != getpid()) (void)crew_.release();
}

void Team::run_job(Job job) {
  if (size_ == 1) return job.call(job.self, 0);
  if (!crew_ || process_ != getpid()) {
    (void)crew_.release();
    process_ = getpid();
    crew_ = std::make_unique<Crew>(size_ - 1);
  }
  crew_->run(job);
}

}  // namespace mh
