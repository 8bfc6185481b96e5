// The little that a stand-alone test program needs: a check that counts, and arrays of exact size.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "plan/layer.h"
#include "random.h"

namespace mh::test {

inline void check(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

// Exactly as many floats as asked for, so that a sanitizer sees any step beyond them.
using Array = std::vector<float>;

inline Array random_array(Index n, std::uint64_t seed, float scale = 1.0f) {
  Random random(seed);
  Array out(static_cast<std::size_t>(n));
  for (float& x : out) {
    x = scale * (static_cast<float>(random.next() >> 40) / 8388608.0f - 1.0f);
  }
  return out;
}

inline bool close(const Array& a, const Array& b, float tolerance) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::fabs(a[i] - b[i]) <= tolerance * (1.0f + std::fabs(b[i])))) return false;
  }
  return true;
}

// Weights with their states, owned here as a caller of a plan owns them.
struct Weights {
  std::vector<std::unique_ptr<Array>> arrays;

  Parameter parameter(Index n, int states, std::uint64_t seed, float scale) {
    Parameter p;
    p.size = n;
    p.trained = true;
    arrays.push_back(std::make_unique<Array>(random_array(n, seed, scale)));
    p.weight = arrays.back()->data();
    for (int i = 0; i < states; ++i) {
      arrays.push_back(std::make_unique<Array>(static_cast<std::size_t>(n), 0.0f));
      p.states.push_back(arrays.back()->data());
    }
    return p;
  }
};

void test_client();
void test_codec(const KernelTable& table);
void test_convolutions(const KernelTable& table);
void test_flat(const KernelTable& table);
void test_kernels(const KernelTable& table);
void test_label_lines();
void test_lsh();
void test_lsh_shared(const KernelTable& table);
void test_plans(const KernelTable& table);
void test_replication();
void test_server();
void test_shared_values(const KernelTable& table);
void test_racing_samples();
void test_sparse_trainer();
void test_two_threads(bool share_weights);
void test_winograd(const KernelTable& table);

}  // namespace mh::test
