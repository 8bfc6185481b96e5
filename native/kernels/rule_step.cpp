#include "kernels/rule_step.h"

#include <cmath>
#include <stdexcept>

namespace mh {
namespace {

RuleKind kind_of(const std::string& name, const RuleSettings& settings) {
  if (name == "sgd") {
    if (settings.momentum == 0.0) return RuleKind::kSgd;
    return settings.nesterov ? RuleKind::kNesterov : RuleKind::kMomentum;
  }
  if (name == "adagrad") return RuleKind::kAdagrad;
  if (name == "adam") return RuleKind::kAdam;
  if (name == "adamw") return RuleKind::kAdamW;
  if (name == "outer") return RuleKind::kOuter;
  if (name == "accumulate") return RuleKind::kAccumulate;
  throw std::invalid_argument(
      "The rule's name is '" + name +
      "'; expected sgd, adagrad, adam, adamw, outer or accumulate.");
}

void require_known_settings(RuleKind kind, const RuleSettings& s) {
  if (s.delay < 1) {
    throw std::invalid_argument("The outer rule's delay is " + std::to_string(s.delay) +
                                "; expected 1 or more updates.");
  }
  if (s.delay != 1 && kind != RuleKind::kOuter) {
    throw std::invalid_argument("Only the outer rule has a delay; leave it at 1.");
  }
  if (s.weight_decay != 0.0 && kind == RuleKind::kOuter) {
    throw std::invalid_argument(
        "The outer rule has no weight decay; give it to the replicas' own rule.");
  }
  if (s.momentum != 0.0 && kind == RuleKind::kAccumulate) {
    throw std::invalid_argument("The accumulate rule has no momentum; the server's rule may.");
  }
}

}  // namespace

Rule::Rule(const std::string& name, const RuleSettings& chosen)
    : kind(kind_of(name, chosen)), settings(chosen) {
  require_known_settings(kind, chosen);
}

int Rule::states() const {
  switch (kind) {
    case RuleKind::kSgd:
      return 0;
    case RuleKind::kAdam:
    case RuleKind::kAdamW:
    case RuleKind::kOuter:
      return 2;
    default:
      return 1;
  }
}

RuleStep at_step(const Rule& rule, double rate, std::int64_t step, double grad_scale) {
  const RuleSettings& s = rule.settings;
  RuleStep out{};
  out.kind = rule.kind;
  out.scale = static_cast<float>(grad_scale);
  out.rate = static_cast<float>(rate);
  out.momentum = static_cast<float>(s.momentum);
  out.decay = static_cast<float>(s.weight_decay);
  out.eps = static_cast<float>(s.eps);
  if (rule.kind == RuleKind::kAdam || rule.kind == RuleKind::kAdamW) {
    const double count = static_cast<double>(step);
    out.rate = static_cast<float>(rate / (1.0 - std::pow(s.beta1, count)));
    out.root_scale = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(s.beta2, count)));
    out.momentum = static_cast<float>(s.beta1);
    out.take1 = static_cast<float>(1.0 - s.beta1);
    out.beta2 = static_cast<float>(s.beta2);
    out.take2 = static_cast<float>(1.0 - s.beta2);
    if (rule.kind == RuleKind::kAdamW) out.decay = static_cast<float>(1.0 - rate * s.weight_decay);
  }
  if (rule.kind == RuleKind::kOuter) {
    out.take1 = static_cast<float>(1.0 / static_cast<double>(s.delay));
    out.due = step % s.delay == 0;
  }
  return out;
}

}  // namespace mh
