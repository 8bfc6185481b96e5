// What a gradient does to a weight: one functor per rule, over one vector of weights.
//
// The flat walk (update.h) and the last step of the weight-gradient product (linear_backward.h)
// both end here, so a rule is written once. Rules that torch.optim has too
// give its results to rounding. The weights and states are shared with other processes that update them at the same time without
// locks (Adam, section 3.2.2): a lost update is one more source of noise to the network, and a
// float is never torn on the machines we run on.
#pragma once

#include "kernels/rule_step.h"
#include "kernels/vec.h"

namespace mh::MH_ISA {

struct Sgd {
  static constexpr int kStates = 0;
  Vec scale, rate, decay;
  explicit Sgd(const RuleStep& s)
      : scale(splat(s.scale)), rate(splat(-s.rate)), decay(splat(s.decay)) {}
  MH_INLINE void operator()(Vec grad, Vec& weight, Vec&, Vec&) const {
    weight = fma(rate, fma(decay, weight, scale * grad), weight);
  }
};

struct Momentum {
  static constexpr int kStates = 1;
  Vec scale, rate, decay, momentum;
  explicit Momentum(const RuleStep& s)
      : scale(splat(s.scale)),
        rate(splat(-s.rate)),
        decay(splat(s.decay)),
        momentum(splat(s.momentum)) {}
  MH_INLINE void operator()(Vec grad, Vec& weight, Vec& speed, Vec&) const {
    speed = fma(momentum, speed, fma(decay, weight, scale * grad));
    weight = fma(rate, speed, weight);
  }
};

struct Nesterov {
  static constexpr int kStates = 1;
  Vec scale, rate, decay, momentum;
  explicit Nesterov(const RuleStep& s)
      : scale(splat(s.scale)),
        rate(splat(-s.rate)),
        decay(splat(s.decay)),
        momentum(splat(s.momentum)) {}
  MH_INLINE void operator()(Vec grad, Vec& weight, Vec& speed, Vec&) const {
    const Vec g = fma(decay, weight, scale * grad);
    speed = fma(momentum, speed, g);
    weight = fma(rate, fma(momentum, speed, g), weight);
  }
};

struct Adagrad {
  static constexpr int kStates = 1;
  Vec scale, rate, decay, eps;
  explicit Adagrad(const RuleStep& s)
      : scale(splat(s.scale)), rate(splat(-s.rate)), decay(splat(s.decay)), eps(splat(s.eps)) {}
  MH_INLINE void operator()(Vec grad, Vec& weight, Vec& squares, Vec&) const {
    const Vec g = fma(decay, weight, scale * grad);
    squares = fma(g, g, squares);
    weight = weight + rate * g / (root(squares) + eps);
  }
};

// kDecoupled: decay shrinks the weight itself (AdamW) instead of joining the gradient (Adam).
template <bool kDecoupled>
struct AdamLike {
  static constexpr int kStates = 2;
  Vec scale, rate, decay, keep1, take1, keep2, take2, root_scale, eps;
  explicit AdamLike(const RuleStep& s)
      : scale(splat(s.scale)),
        rate(splat(-s.rate)),
        decay(splat(s.decay)),
        keep1(splat(s.momentum)),
        take1(splat(s.take1)),
        keep2(splat(s.beta2)),
        take2(splat(s.take2)),
        root_scale(splat(s.root_scale)),
        eps(splat(s.eps)) {}
  MH_INLINE void operator()(Vec grad, Vec& weight, Vec& mean, Vec& square) const {
    Vec g = scale * grad;
    if (kDecoupled) {
      weight = decay * weight;
    } else {
      g = fma(decay, weight, g);
    }
    mean = fma(keep1, mean, take1 * g);
    square = fma(keep2, square, take2 * g * g);
    weight = weight + rate * mean / fma(root(square), root_scale, eps);
  }
};

// Delayed Nesterov momentum for pushes that sum many local steps (Liu et al. 2024, "Asynchronous
// Local-SGD Training for Language Modeling", algorithm 3 with c = 0). The gradient is what a replica
// moved by, base - local. Every push moves the weights by its own share; the momentum waits until
// `delay` pushes were summed, so that pushes that come late and out of turn don't steer it each.
template <bool kDue>
struct Outer {
  static constexpr int kStates = 2;
  Vec scale, rate, momentum, share;
  explicit Outer(const RuleStep& s)
      : scale(splat(s.scale)),
        rate(splat(-s.rate)),
        momentum(splat(s.momentum)),
        share(splat(s.take1)) {}
  MH_INLINE void operator()(Vec grad, Vec& weight, Vec& speed, Vec& waiting) const {
    const Vec g = scale * grad;
    waiting = waiting + g;
    Vec move = share * g;
    if (kDue) {
      speed = fma(momentum, speed, share * waiting);
      waiting = zero();
      move = fma(momentum, speed, move);
    }
    weight = fma(rate, move, weight);
  }
};

// A replica's local step (DistBelief, section 4.1): the weights move at once, and the gradient joins
// what will be pushed.
struct Accumulate {
  static constexpr int kStates = 1;
  Vec scale, rate, decay;
  explicit Accumulate(const RuleStep& s)
      : scale(splat(s.scale)), rate(splat(-s.rate)), decay(splat(s.decay)) {}
  MH_INLINE void operator()(Vec grad, Vec& weight, Vec& accrued, Vec&) const {
    const Vec g = fma(decay, weight, scale * grad);
    accrued = accrued + g;
    weight = fma(rate, g, weight);
  }
};

// Calls `body` with the functor of the step's rule.
template <typename Body>
MH_INLINE void with_rule(const RuleStep& step, const Body& body) {
  switch (step.kind) {
    case RuleKind::kSgd:
      return body(Sgd(step));
    case RuleKind::kMomentum:
      return body(Momentum(step));
    case RuleKind::kNesterov:
      return body(Nesterov(step));
    case RuleKind::kAdagrad:
      return body(Adagrad(step));
    case RuleKind::kAdam:
      return body(AdamLike<false>(step));
    case RuleKind::kAdamW:
      return body(AdamLike<true>(step));
    case RuleKind::kOuter:
      return step.due ? body(Outer<true>(step)) : body(Outer<false>(step));
    case RuleKind::kAccumulate:
      return body(Accumulate(step));
  }
}

}  // namespace mh::MH_ISA
