#include "sparse/single_sets.h"

#include <algorithm>
#include <cmath>

namespace mh {

SingleSets::SingleSets(SparseNet& net, const KernelTable& kernels, Index max_batch, Team& team)
    : net_(net),
      kernels_(kernels),
      team_(team),
      seats_(static_cast<std::size_t>(team.size())),
      inputs_(max_batch * net.width),
      losses_(static_cast<std::size_t>(max_batch)) {
  for (Seat& seat : seats_) prepare(seat);
  use_index();
}

void SingleSets::use_index() {
  for (Seat& seat : seats_) {
    seat.search = net_.index ? std::make_unique<LshIndex::Search>(*net_.index) : nullptr;
  }
}

void SingleSets::prepare(Seat& seat) const {
  for (const HiddenLayer& layer : net_.hidden) {
    Layer l{Buffer(layer.out), Buffer(layer.out), Buffer(), Buffer(), Buffer()};
    if (!layer.sparse) {
      l.x_panel = Buffer(panel_floats(1, layer.in));
      l.dx_panel = Buffer(panel_floats(1, layer.in));
      l.scratch = Buffer(linear_backward_scratch(1));
    }
    seat.layers.push_back(std::move(l));
  }
}

double SingleSets::train(const SparseBatch& batch, const SparseRuleStep& step, Figures& figures) {
  std::fill(losses_.begin(), losses_.begin() + batch.count, 0.0);
  std::atomic<bool> stop{false};
  for_units(team_, batch.count, [&](Index sample, int thread) {
    if (stop.load(std::memory_order_relaxed)) return;
    Seat& seat = seats_[static_cast<std::size_t>(thread)];
    double& loss = losses_[static_cast<std::size_t>(sample)];
    loss = train_one(batch, sample, step, seat);
    if (!std::isfinite(loss)) stop.store(true, std::memory_order_relaxed);
  });
  if (net_.index && !stop.load(std::memory_order_relaxed)) {
    net_.index->see_inputs(inputs_.data(), net_.width, batch.count);
  }
  for (Seat& seat : seats_) {
    figures.add(seat.figures, 1.0 / team_.size());
    seat.figures = Figures{};
  }
  double total = 0.0;
  for (Index b = 0; b < batch.count; ++b) total += losses_[static_cast<std::size_t>(b)];
  return total / static_cast<double>(batch.count);
}

double SingleSets::train_one(const SparseBatch& batch, Index sample, const SparseRuleStep& step,
                             Seat& seat) {
  Stopwatch watch;
  forward(batch, sample, seat);
  const float* seen = seat.layers.back().y.data();
  std::copy(seen, seen + net_.width, inputs_.data() + sample * net_.width);
  watch.mark(seat.figures.hidden_s);
  choose(batch, sample, seat);
  watch.mark(seat.figures.choose_s);
  const auto count = static_cast<Index>(seat.rows.size());
  seat.logits.resize(seat.rows.size());
  seat.grads.resize(seat.rows.size());
  const float* x = seat.layers.back().y.data();
  const RowArrays weight = output_rows(net_, LshIndex::sample_seed(batch.seed, sample));
  kernels_.row_dots(weight, net_.bias.weight, seat.rows.data(), count, x, seat.logits.data());
  watch.mark(seat.figures.logits_s);
  const double value = loss(batch, sample, seat);
  watch.mark(seat.figures.loss_s);
  if (!std::isfinite(value)) return value;
  float* dx = seat.layers.back().dy.data();
  std::fill(dx, dx + net_.width, 0.0f);
  const RowArrays bias = rows_of(net_.bias, 1, 1);
  if (net_.decay) net_.decay->make_good(kernels_, weight, bias, seat.rows.data(), count);
  kernels_.row_steps(weight, bias, step.rows, seat.rows.data(), count, seat.grads.data(), x, dx);
  kernels_.relu_grad(net_.width, x, dx, dx);
  net_.moved(seat.rows.data(), count);
  watch.mark(seat.figures.update_s);
  backward(batch, sample, step, seat);
  watch.mark(seat.figures.hidden_update_s);
  const auto copies = static_cast<Index>(1 + net_.weight.states.size());
  seat.figures.active_rows += count;
  seat.figures.bytes += count * ((net_.width + 1) * 4 * (1 + 2 * copies) - net_.saved_bytes());
  return value;
}

void SingleSets::forward(const SparseBatch& batch, Index sample, Seat& seat) {
  for (std::size_t i = 0; i < net_.hidden.size(); ++i) {
    const HiddenLayer& layer = net_.hidden[i];
    float* y = seat.layers[i].y.data();
    if (layer.sparse) {
      SparseRows x = batch.x;
      x.offsets += sample;
      kernels_.feature_forward(rows_of(layer.weight, layer.out, layer.stride), layer.bias.weight, x,
                               1, batch.features_end, y, layer.out);
      continue;
    }
    const float* x = i ? seat.layers[i - 1].y.data() : batch.dense + sample * layer.in;
    kernels_.linear_forward({1, layer.in, layer.out, x, layer.in, layer.weight.weight,
                             layer.bias.weight, y, layer.out, true, nullptr});
  }
}

void SingleSets::choose(const SparseBatch& batch, Index sample, Seat& seat) {
  if (batch.named.offsets) {
    seat.rows.assign(batch.named.rows + batch.named.offsets[sample],
                     batch.named.rows + batch.named.offsets[sample + 1]);
    return;
  }
  const Index labels = label_count(batch.labels, sample);
  const std::int32_t* first =
      labels ? batch.labels.labels + batch.labels.offsets[sample] : nullptr;
  seat.search->one(seat.layers.back().y.data(), first, labels, net_.sampling,
                   LshIndex::sample_seed(batch.seed, sample), seat.rows);
}

// The loss of one sample; its gradient, with the sample's share of the batch, is in seat.grads.
double SingleSets::loss(const SparseBatch& batch, Index sample, Seat& seat) const {
  const double share = 1.0 / static_cast<double>(batch.count);
  const Index labels = label_count(batch.labels, sample);
  const bool softmax = net_.loss == SparseLoss::kSoftmax;
  double value = softmax ? softmax_loss(seat, labels, share) : sigmoid_loss(seat, share);
  const double target = softmax ? 1.0 / static_cast<double>(labels) : 1.0;
  for (Index i = 0; i < labels; ++i) {
    const std::int32_t label = batch.labels.labels[batch.labels.offsets[sample] + i];
    const auto at = std::lower_bound(seat.rows.begin(), seat.rows.end(), label) - seat.rows.begin();
    value -= target * static_cast<double>(seat.logits[static_cast<std::size_t>(at)]);
    seat.grads[static_cast<std::size_t>(at)] -= static_cast<float>(target * share);
  }
  return value;
}

double SingleSets::softmax_loss(Seat& seat, Index labels, double share) const {
  if (seat.rows.empty()) return 0.0;
  float top;
  const auto count = static_cast<Index>(seat.rows.size());
  const double sum = kernels_.exponentials(count, seat.logits.data(), seat.grads.data(), &top);
  if (labels == 0) {
    std::fill(seat.grads.begin(), seat.grads.end(), 0.0f);
    return sum - sum;  // zero, unless a logit is not finite
  }
  const auto scale = static_cast<float>(share / sum);
  for (float& grad : seat.grads) grad *= scale;
  return std::log(sum) + static_cast<double>(top);
}

double SingleSets::sigmoid_loss(Seat& seat, double share) const {
  kernels_.sigmoid(static_cast<Index>(seat.rows.size()), seat.logits.data(), seat.grads.data());
  double total = 0.0;
  for (std::size_t i = 0; i < seat.rows.size(); ++i) {
    const double z = static_cast<double>(seat.logits[i]);
    total += std::log1p(std::exp(-std::fabs(z))) + (z > 0.0 ? z : 0.0) + (z - z);
    seat.grads[i] *= static_cast<float>(share);
  }
  return total;
}

void SingleSets::update_bias(std::size_t number, const RuleStep& step, Seat& seat) {
  const HiddenLayer& layer = net_.hidden[number];
  if (!layer.bias.weight) return;
  kernels_.update(step, layer.out, layer.bias.weight, seat.layers[number].dy.data(),
                  layer.bias.state(0), layer.bias.state(1));
}

void SingleSets::backward(const SparseBatch& batch, Index sample, const SparseRuleStep& step,
                          Seat& seat) {
  for (std::size_t i = net_.hidden.size(); i-- > 0;) {
    if (net_.hidden[i].sparse) {
      backward_sparse(batch, sample, step.rows, seat);
    } else {
      const float* x = i ? seat.layers[i - 1].y.data() : batch.dense + sample * net_.hidden[i].in;
      backward_dense(i, x, step.dense, seat);
    }
    update_bias(i, step.dense, seat);
  }
}

void SingleSets::backward_dense(std::size_t number, const float* x, const RuleStep& step,
                                Seat& seat) {
  const HiddenLayer& layer = net_.hidden[number];
  Layer& l = seat.layers[number];
  kernels_.pack_panels(1, layer.in, x, layer.in, l.x_panel.data());
  LinearBackward p{};
  p.batch = 1;
  p.in = layer.in;
  p.out = layer.out;
  p.dy = l.dy.data();
  p.lddy = layer.out;
  p.scratch = l.scratch.data();
  p.x_panels = l.x_panel.data();
  p.dx_panels = number ? l.dx_panel.data() : nullptr;
  p.weight = layer.weight.weight;
  p.state0 = layer.weight.state(0);
  p.state1 = layer.weight.state(1);
  p.train = true;
  p.step = &step;
  kernels_.linear_backward(p);
  if (number == 0) return;
  const Layer& before = seat.layers[number - 1];
  kernels_.relu_grad(layer.in, before.y.data(), l.dx_panel.data(), before.dy.data());
}

void SingleSets::backward_sparse(const SparseBatch& batch, Index sample, const RuleStep& step,
                                 Seat& seat) {
  const HiddenLayer& layer = net_.hidden.front();
  SparseRows x = batch.x;
  x.offsets += sample;
  seat.grouping.group(x, 1, layer.in);
  const FeatureGroups groups = seat.grouping.groups();
  const RowArrays rows = rows_of(layer.weight, layer.out, layer.stride);
  if (layer.decay) layer.decay->make_good(kernels_, rows, {}, groups.features, groups.count);
  kernels_.feature_update(rows, step, groups, 0, groups.count,
                          seat.layers.front().dy.data(), layer.out, nullptr);
  const auto copies = static_cast<Index>(1 + layer.weight.states.size());
  const Index features = x.offsets[1] - x.offsets[0];
  seat.figures.feature_rows += groups.count;
  seat.figures.bytes += (features + groups.count * 2 * copies) * layer.out * 4;
}

}  // namespace mh
