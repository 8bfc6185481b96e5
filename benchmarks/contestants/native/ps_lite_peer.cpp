// ps-lite as a contestant: one server whose handler adds in place, one worker that follows orders.
//
// Build against a built checkout of ps-lite. The role comes from DMLC_ROLE, as in all its programs.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <unordered_map>

#include "driver.h"
#include "ps/ps.h"

namespace {

using Values = ps::SArray<float>;

// The best a user's handler can do: the store is a flat array for each key, a push is added to it
// where it lies, a pull is answered out of it without a copy.
class Store {
 public:
  void operator()(const ps::KVMeta& meta, const ps::KVPairs<float>& request,
                  ps::KVServer<float>* server) {
    const ps::Key key = request.keys[0];
    ps::KVPairs<float> answer;
    if (meta.push) {
      add(key, request.vals);
    } else {
      answer.keys = request.keys;
      answer.vals = values_[key];
    }
    server->Response(meta, answer);
  }

 private:
  void add(ps::Key key, const Values& change) {
    Values& values = values_[key];
    if (values.size() < change.size()) values.resize(change.size(), 0.0f);
    float* __restrict to = values.data();
    const float* __restrict from = change.data();
    const std::size_t count = change.size();
    for (std::size_t i = 0; i < count; ++i) to[i] += 0.001f * from[i];
  }

  std::unordered_map<ps::Key, Values> values_;
};

class Worker {
 public:
  Answer execute(const Order& order) {
    prepare(order.bytes / sizeof(float));
    if (order.window == 1) {
      return one_at_a_time(order.seconds, [&](long number) { finish(begin(order, number)); });
    }
    return in_a_window(order);
  }

 private:
  struct Pending {
    int push = -1;
    int pull = -1;
  };

  // Keys of one size are numbered from a base of their own; pushed once, so that they exist.
  void prepare(std::size_t floats) {
    if (floats_ == floats) return;
    floats_ = floats;
    changes_.clear();
    pulled_.clear();
    keys_.clear();
    for (int chunk = 0; chunk < chunks_of(floats * sizeof(float)); ++chunk) {
      changes_.emplace_back(floats, 1e-3f);
      pulled_.emplace_back(floats, 0.0f);
      keys_.emplace_back(1, static_cast<ps::Key>(floats * 64 + static_cast<std::size_t>(chunk)));
      worker_.Wait(worker_.ZPush(keys_.back(), changes_.back()));
    }
  }

  Pending begin(const Order& order, long number) {
    const auto chunk = static_cast<std::size_t>(number) % keys_.size();
    Pending pending;
    if (order.operation != "pull") pending.push = worker_.ZPush(keys_[chunk], changes_[chunk]);
    if (order.operation != "push") pending.pull = worker_.ZPull(keys_[chunk], &pulled_[chunk]);
    return pending;
  }

  void finish(const Pending& pending) {
    if (pending.push >= 0) worker_.Wait(pending.push);
    if (pending.pull >= 0) worker_.Wait(pending.pull);
  }

  Answer in_a_window(const Order& order) {
    std::deque<Pending> under_way;
    const auto began = Clock::now();
    long count = 0;
    while (seconds_between(began, Clock::now()) < order.seconds) {
      if (static_cast<int>(under_way.size()) == order.window) {
        finish(under_way.front());
        under_way.pop_front();
      }
      under_way.push_back(begin(order, count++));
    }
    for (const Pending& pending : under_way) finish(pending);
    return {count, seconds_between(began, Clock::now()), 0.0};
  }

  ps::KVWorker<float> worker_{0, 0};
  std::size_t floats_ = 0;
  std::deque<ps::SArray<ps::Key>> keys_;
  std::deque<Values> changes_, pulled_;
};

}  // namespace

int main() {
  const std::string role = std::getenv("DMLC_ROLE");
  std::unique_ptr<ps::KVServer<float>> server;
  ps::Start(0);
  if (role == "server") {
    server = std::make_unique<ps::KVServer<float>>(0);
    server->set_request_handle(Store());
  }
  ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup + ps::kServerGroup + ps::kScheduler);
  if (role == "worker") {
    Worker worker;
    serve_orders([&](const Order& order) { return worker.execute(order); });
    std::_Exit(0);
  }
  // Ended by whoever started it: ps-lite's own farewell can hang.
  while (true) pause();
}
