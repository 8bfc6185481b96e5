// Whole plans over odd geometries: they must learn, whatever their sizes, and touch only their own.
#include <stdexcept>

#include "check.h"
#include "plan/plan.h"

namespace mh::test {
namespace {

struct Case {
  const char* name;
  Shape input;
  Index kernel;
  Pair stride, padding, dilation;
  PoolGeometry pool;
  bool average;
};

const std::vector<Case> kCases = {
    {"plain", {1, 12, 13, true}, 5, {1, 1}, {0, 0}, {1, 1}, {{2, 2}, {2, 2}, {0, 0}}, false},
    {"padded", {3, 9, 7, true}, 3, {1, 1}, {1, 2}, {1, 1}, {{2, 2}, {2, 2}, {0, 0}}, false},
    {"strided", {2, 15, 17, true}, 3, {2, 2}, {1, 0}, {1, 1}, {{3, 3}, {1, 2}, {1, 1}}, false},
    {"dilated", {2, 14, 11, true}, 3, {1, 1}, {0, 1}, {2, 3}, {{3, 2}, {2, 2}, {0, 0}}, true},
    {"wide", {2, 6, 40, true}, 3, {2, 1}, {1, 1}, {1, 1}, {{2, 2}, {2, 2}, {0, 0}}, false},
    {"point", {5, 3, 3, true}, 1, {1, 1}, {0, 0}, {1, 1}, {{1, 1}, {1, 1}, {0, 0}}, true},
};

void add_conv(Plan& plan, Weights& weights, const Case& c, Index in, Index out, int states) {
  plan.conv2d(out, in, {{c.kernel, c.kernel}, c.stride, c.padding, c.dilation},
              weights.parameter(out * in * c.kernel * c.kernel, states, 11, 0.3f),
              weights.parameter(out, states, 12, 0.1f));
}

void add_linear(Plan& plan, Weights& weights, Index out, int states, std::uint64_t seed) {
  const Index in = plan.outputs();
  const float scale = 1.7f / std::sqrt(static_cast<float>(in));
  plan.linear(out, in, weights.parameter(out * in, states, seed, scale),
              weights.parameter(out, states, seed + 1, 0.1f));
}

// Trains on one small set of samples again and again: the loss must fall below that of a guess.
void expect_learning(Plan& plan, Index batch, double rate, const char* name) {
  constexpr Index kSamples = 23;
  const Array x = random_array(kSamples * plan.input().size(), 21);
  std::vector<std::int64_t> targets(kSamples);
  for (Index i = 0; i < kSamples; ++i) targets[i] = i % plan.outputs();
  const auto batches = static_cast<std::size_t>((kSamples + batch - 1) / batch);
  const std::vector<double> rates(batches, rate);
  std::vector<double> losses(batches);
  double last = 0.0;
  for (int epoch = 0; epoch < 30; ++epoch) {
    const auto done = plan.train({x.data(), targets.data(), kSamples, batch, rates.data(),
                                  losses.data(), 1 + epoch * static_cast<Index>(batches)});
    check(done == static_cast<Index>(batches), "all batches done");
    last = 0.0;
    for (const double loss : losses) last += loss / static_cast<double>(batches);
  }
  check(last < 0.95 * std::log(static_cast<double>(plan.outputs())), name);
  Array out(static_cast<std::size_t>(kSamples * plan.outputs()));
  plan.forward(x.data(), kSamples, out.data());
}

void train_case(const Case& c, const char* rule_name, std::optional<double> clip) {
  const Rule rule(rule_name, RuleSettings{0.9});
  Weights weights;
  Plan plan(c.input, 9);
  add_conv(plan, weights, c, c.input.channels, 7, rule.states());
  plan.relu();
  c.average ? plan.average_pool2d(c.pool) : plan.max_pool2d(c.pool);
  plan.conv2d(3, 7, {{1, 2}, {1, 1}, {0, 1}, {1, 1}},
              weights.parameter(42, rule.states(), 15, 0.3f), {});
  plan.tanh();
  plan.flatten();
  add_linear(plan, weights, 13, rule.states(), 17);
  plan.dropout(0.1);
  plan.sigmoid();
  add_linear(plan, weights, 5, rule.states(), 19);
  plan.cross_entropy(0.1);
  plan.finish(rule, clip, 3);
  for (const Index batch : {1, 4, 9}) expect_learning(plan, batch, 0.01, c.name);
}

void refuse_bad_targets() {
  Weights weights;
  Plan plan(Shape{4}, 2);
  add_linear(plan, weights, 3, 0, 1);
  plan.cross_entropy(0.0);
  plan.finish(Rule("sgd", {}), std::nullopt, 0);
  const Array x = random_array(4, 1), before = *weights.arrays[0];
  const std::int64_t target = 3;
  const double rate = 0.1;
  double loss = 0.0;
  bool refused = false;
  try {
    plan.train({x.data(), &target, 1, 1, &rate, &loss, 1});
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  check(refused && close(*weights.arrays[0], before, 0.0f), "bad target refused");
}

}  // namespace

void test_plans(const KernelTable&) {
  for (const Case& c : kCases) {
    train_case(c, "sgd", std::nullopt);
    train_case(c, "adam", 1.0);
  }
  train_case(kCases[0], "adagrad", std::nullopt);
  refuse_bad_targets();
}

}  // namespace mh::test
