// Walks over flat arrays of parameters: updating, measuring and averaging them, one pass each.
#pragma once

#include "kernels/rules.h"

namespace mh::MH_ISA {

// One rule applied to one vector in memory; `lanes` < kLanes only at an array's end.
template <typename R>
MH_INLINE void apply_at(const R& rule, Vec grad, float* weight, float* state0, float* state1,
                        int lanes) {
  const bool whole = lanes == kLanes;
  const auto get = [&](const float* p) { return whole ? load(p) : load_part(p, lanes); };
  const auto put = [&](float* p, Vec v) { whole ? store(p, v) : store_part(p, lanes, v); };
  Vec w = get(weight);
  Vec s0 = R::kStates > 0 ? get(state0) : zero();
  Vec s1 = R::kStates > 1 ? get(state1) : zero();
  rule(grad, w, s0, s1);
  put(weight, w);
  if (R::kStates > 0) put(state0, s0);
  if (R::kStates > 1) put(state1, s1);
}

template <typename R>
void update_with(const R& rule, Index n, float* weight, const float* grad, float* state0,
                 float* state1) {
  Index i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    apply_at(rule, load(grad + i), weight + i, state0 + i, state1 + i, kLanes);
  }
  const int rest = static_cast<int>(n - i);
  if (rest == 0) return;
  apply_at(rule, load_part(grad + i, rest), weight + i, state0 + i, state1 + i, rest);
}

inline void update(const RuleStep& step, Index n, float* weight, const float* grad, float* state0,
                   float* state1) {
  with_rule(step, [=](const auto& rule) { update_with(rule, n, weight, grad, state0, state1); });
}

// Blocks are summed in single precision across lanes, blocks in double: exact enough and fast.
inline double squared_norm(Index n, const float* x) {
  constexpr Index kBlock = 16 * kLanes;
  double total = 0.0;
  Index i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    Vec sums[4] = {zero(), zero(), zero(), zero()};
    for (Index j = 0; j < kBlock; j += 4 * kLanes) {
      MH_UNROLL
      for (int u = 0; u < 4; ++u) {
        const Vec v = load(x + i + j + u * kLanes);
        sums[u] = fma(v, v, sums[u]);
      }
    }
    total += sum_wide((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
  for (; i < n; ++i) total += static_cast<double>(x[i]) * x[i];
  return total;
}

// averaged += share * (weight - averaged)
inline void average(Index n, float* averaged, const float* weight, float share) {
  const Vec s = splat(share);
  Index i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec a = load(averaged + i);
    store(averaged + i, fma(s, load(weight + i) - a, a));
  }
  for (; i < n; ++i) averaged[i] += share * (weight[i] - averaged[i]);
}

}  // namespace mh::MH_ISA
