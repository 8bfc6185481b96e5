// An update rule as numbers: its settings (Rule), and what they come to at one step (RuleStep).
//
// The arithmetic itself is in rules.h, once per instruction set.
#pragma once

#include <cstdint>
#include <string>

namespace mh {

enum class RuleKind {
  kSgd,
  kMomentum,
  kNesterov,
  kAdagrad,
  kAdam,
  kAdamW,
  kOuter,
  kAccumulate,
};

struct RuleSettings {
  double momentum = 0.0;
  bool nesterov = false;
  double weight_decay = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  std::int64_t delay = 1;  // outer: updates from one movement of the momentum to the next
};

struct Rule {
  RuleKind kind;
  RuleSettings settings;

  // Throws std::invalid_argument for an unknown name and for settings that the rule does not have.
  Rule(const std::string& name, const RuleSettings& settings);

  // How many arrays of the weight's shape the rule keeps beside it.
  int states() const;
};

// Everything that depends on the step but not on the element.
struct RuleStep {
  RuleKind kind;
  float scale;     // multiplies the gradient
  float rate;      // step size, Adam's first bias correction included
  float momentum;  // SGD's momentum, or Adam's beta1
  float decay;     // added to the gradient as decay * weight; AdamW: share of the weight that stays
  float take1;     // 1 - beta1, rounded once; outer: 1 / delay
  float beta2;
  float take2;       // 1 - beta2
  float root_scale;  // Adam's second bias correction, multiplies the root
  float eps;
  bool due;  // outer: the momentum moves at this step
};

// For a gradient that sums so many steps: each of them would have let the weights decay. AdamW's
// decay goes with its rate, which stands for all of the steps already.
inline RuleStep summing(RuleStep step, std::uint32_t steps) {
  if (step.kind != RuleKind::kAdamW && steps > 1) step.decay *= static_cast<float>(steps);
  return step;
}

// `step` counts from 1.
RuleStep at_step(const Rule& rule, double rate, std::int64_t step, double grad_scale);

}  // namespace mh
