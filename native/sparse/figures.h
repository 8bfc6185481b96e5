// What training cost so far: seconds by phase, and the bytes of rows that it read and wrote.
#pragma once

#include <chrono>
#include <cstdint>

namespace mh {

struct Figures {
  std::int64_t batches = 0, samples = 0;
  std::int64_t active_rows = 0;   // of the output layer, summed over batches (or samples)
  std::int64_t feature_rows = 0;  // of the input layer that were updated
  std::int64_t bytes = 0;         // of rows, with their states
  double hidden_s = 0.0;          // forward through the layers before the output
  double choose_s = 0.0;          // hashing and looking up
  double logits_s = 0.0;          // gathering rows, and their products with the samples
  double loss_s = 0.0;
  double gradient_s = 0.0;        // of the output layer's input
  double update_s = 0.0;          // the output layer's rows
  double hidden_update_s = 0.0;   // backward and update of the layers before

  // What a thread measured of its own joins the whole with `share` of its seconds.
  void add(const Figures& other, double share) {
    active_rows += other.active_rows;
    feature_rows += other.feature_rows;
    bytes += other.bytes;
    hidden_s += share * other.hidden_s;
    choose_s += share * other.choose_s;
    logits_s += share * other.logits_s;
    loss_s += share * other.loss_s;
    gradient_s += share * other.gradient_s;
    update_s += share * other.update_s;
    hidden_update_s += share * other.hidden_update_s;
  }
};

// Seconds from one mark to the next.
class Stopwatch {
 public:
  void mark(double& seconds) {
    const auto now = std::chrono::steady_clock::now();
    seconds += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace mh
