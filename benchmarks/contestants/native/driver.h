// What the native peers of a parameter server share: orders on stdin, one answer each on stdout.
//
// An order is `OPERATION BYTES WINDOW SECONDS`; the answer is `OPERATIONS ELAPSED_S P50_US`, where
// the middle is taken over single operations and only means something with a window of 1.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

constexpr int kChunks = 16;  // at most; as benchmarks/contestants/node_peers.py has
constexpr std::size_t kMostBytes = 64u << 20;  // in all chunks of one size

inline int chunks_of(std::size_t bytes) {
  return static_cast<int>(std::max<std::size_t>(1, std::min<std::size_t>(kChunks, kMostBytes / bytes)));
}

struct Order {
  std::string operation;  // push, pull or both
  std::size_t bytes = 0;
  int window = 1;
  double seconds = 0.0;
};

struct Answer {
  long operations = 0;
  double elapsed_s = 0.0;
  double p50_us = 0.0;
};

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

inline double middle(std::vector<double>& values) {
  if (values.empty()) return 0.0;
  auto half = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), half, values.end());
  return *half;
}

// Carries out one operation after another, each awaited, until the time is over.
template <typename Operation>
Answer one_at_a_time(double seconds, Operation operation) {
  std::vector<double> each_us;
  const auto began = Clock::now();
  auto now = began;
  while (seconds_between(began, now) < seconds) {
    const auto before = now;
    operation(static_cast<long>(each_us.size()));
    now = Clock::now();
    each_us.push_back(1e6 * seconds_between(before, now));
  }
  const auto count = static_cast<long>(each_us.size());
  return {count, seconds_between(began, now), middle(each_us)};
}

// Reads orders until stdin closes.
template <typename Execute>
void serve_orders(Execute execute) {
  char operation[16];
  Order order;
  std::printf("ready\n");
  std::fflush(stdout);
  while (std::scanf("%15s %zu %d %lf", operation, &order.bytes, &order.window, &order.seconds) ==
         4) {
    order.operation = operation;
    const Answer answer = execute(order);
    std::printf("%ld %.9f %.3f\n", answer.operations, answer.elapsed_s, answer.p50_us);
    std::fflush(stdout);
  }
}
