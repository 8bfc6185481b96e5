// Two threads train at once: on the same weights, as two processes do in training, or on their own,
// which shows that plans share nothing but the weights.
#include <thread>

#include "check.h"
#include "plan/plan.h"

namespace mh::test {
namespace {

constexpr Index kSamples = 60;

void build(Plan& plan, const std::vector<Parameter>& shared) {
  const auto copy = [&](std::size_t i) {
    Parameter p;
    p.weight = shared[i].weight;
    p.states = shared[i].states;
    p.size = shared[i].size;
    p.trained = true;
    return p;
  };
  plan.conv2d(4, 1, {{3, 3}, {1, 1}, {0, 0}, {1, 1}}, copy(0), copy(1));
  plan.relu();
  plan.max_pool2d({{2, 2}, {2, 2}, {0, 0}});
  plan.flatten();
  plan.linear(20, plan.outputs(), copy(2), copy(3));
  plan.relu();
  plan.linear(3, 20, copy(4), copy(5));
  plan.cross_entropy(0.0);
  plan.finish(Rule("sgd", RuleSettings{0.9}), std::nullopt, 0);
}

void train(const std::vector<Parameter>& shared, std::uint64_t seed, double* last) {
  Plan plan(Shape{1, 10, 10, true}, 20);
  build(plan, shared);
  const Array x = random_array(kSamples * 100, seed);
  std::vector<std::int64_t> targets(kSamples);
  for (Index i = 0; i < kSamples; ++i) targets[i] = i % 3;
  for (const Index batch : {1, 6, 20}) {
    const auto batches = static_cast<std::size_t>(kSamples / batch);
    const std::vector<double> rates(batches, 0.01);
    std::vector<double> losses(batches);
    plan.train({x.data(), targets.data(), kSamples, batch, rates.data(), losses.data(), 1});
    *last = losses.back();
  }
}

}  // namespace

void test_two_threads(bool share_weights) {
  Weights weights;
  std::vector<Parameter> ours, theirs;
  std::uint64_t seed = 31;
  for (const Index n : {36, 4, 64 * 20, 20, 60, 3}) {
    ours.push_back(weights.parameter(n, 1, seed++, 0.2f));
    theirs.push_back(weights.parameter(n, 1, seed++, 0.2f));
  }
  double first = 0.0, second = 0.0;
  std::thread one([&] { train(ours, 41, &first); });
  std::thread two([&] { train(share_weights ? ours : theirs, 42, &second); });
  one.join();
  two.join();
  check(std::isfinite(first) && std::isfinite(second), "training in two threads stays finite");
}

}  // namespace mh::test
