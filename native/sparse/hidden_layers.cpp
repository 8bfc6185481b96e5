#include "sparse/hidden_layers.h"

#include <algorithm>

namespace mh {
namespace {

constexpr Index kSampleUnit = 32;    // samples that a thread takes at a time
constexpr Index kRowUnit = 48;       // rows of a weight
constexpr Index kFeatureUnit = 128;  // rows of features
static_assert(kSampleUnit >= kWideBatch, "a unit goes the way of large batches");

}  // namespace

HiddenLayers::HiddenLayers(std::vector<HiddenLayer>& layers, const KernelTable& kernels,
                           Index max_batch, int threads)
    : layers_(layers), kernels_(kernels) {
  Index scratch = 0;
  for (const HiddenLayer& layer : layers) {
    const Index ld = round_up(layer.out, 16);
    Activation a{ld, Buffer(max_batch * ld), Buffer(max_batch * ld), Buffer()};
    if (!layer.sparse) {
      a.x_panels = Buffer(panel_floats(max_batch, layer.in));
      const Index forward = linear_forward_scratch(kSampleUnit, layer.in);
      const Index backward =
          panel_floats(kSampleUnit, layer.in) + linear_backward_scratch(kSampleUnit);
      scratch = std::max({scratch, forward, backward, linear_backward_scratch(max_batch)});
    }
    scratch = std::max(scratch, layer.out);
    activations_.push_back(std::move(a));
  }
  for (int thread = 0; thread < threads; ++thread) scratch_.emplace_back(scratch);
}

const float* HiddenLayers::input_of(std::size_t layer, const SparseBatch& batch, Index* ld) const {
  *ld = layer ? activations_[layer - 1].ld : layers_[layer].in;
  return layer ? activations_[layer - 1].y.data() : batch.dense;
}

void HiddenLayers::forward_sparse(const SparseBatch& batch, Index sample, Index count) {
  const HiddenLayer& layer = layers_.front();
  const Activation& a = activations_.front();
  SparseRows x = batch.x;
  x.offsets += sample;
  kernels_.feature_forward(rows_of(layer.weight, layer.out, layer.stride), layer.bias.weight, x,
                           count, batch.features_end, a.y.data() + sample * a.ld, a.ld);
}

void HiddenLayers::forward_dense(std::size_t number, const SparseBatch& batch, Index sample,
                                 Index count, int thread) {
  const HiddenLayer& layer = layers_[number];
  const Activation& a = activations_[number];
  Index ldx;
  const float* x = input_of(number, batch, &ldx);
  kernels_.linear_forward({count, layer.in, layer.out, x + sample * ldx, ldx, layer.weight.weight,
                           layer.bias.weight, a.y.data() + sample * a.ld, a.ld, true,
                           scratch_[static_cast<std::size_t>(thread)].data()});
}

void HiddenLayers::forward(const SparseBatch& batch, Team& team) {
  for_units(team, units_of(batch.count, kSampleUnit), [&](Index unit, int thread) {
    const Index sample = unit * kSampleUnit, count = std::min(kSampleUnit, batch.count - sample);
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      layers_[layer].sparse ? forward_sparse(batch, sample, count)
                            : forward_dense(layer, batch, sample, count, thread);
    }
  });
}

void HiddenLayers::group_features(const SparseBatch& batch) {
  if (sparse()) grouping_.group(batch.x, batch.count, layers_.front().in);
}

void HiddenLayers::update_bias(std::size_t number, Index count, const RuleStep& step, float* sums) {
  HiddenLayer& layer = layers_[number];
  const Activation& a = activations_[number];
  if (!layer.bias.weight) return;
  kernels_.column_sums(count, layer.out, a.dy.data(), a.ld, sums);
  kernels_.update(step, layer.out, layer.bias.weight, sums, layer.bias.state(0),
                  layer.bias.state(1));
}

// The gradient of a layer's input for some samples, through the ReLU that made it.
void HiddenLayers::input_grads(std::size_t number, Index sample, Index count, int thread) {
  HiddenLayer& layer = layers_[number];
  const Activation &a = activations_[number], &before = activations_[number - 1];
  float* dx_panels = scratch_[static_cast<std::size_t>(thread)].data();
  LinearBackward p{};
  p.batch = count;
  p.in = layer.in;
  p.out = layer.out;
  p.dy = a.dy.data() + sample * a.ld;
  p.lddy = a.ld;
  p.dx_panels = dx_panels;
  p.scratch = dx_panels + panel_floats(kSampleUnit, layer.in);
  p.weight = layer.weight.weight;
  p.train = false;
  kernels_.linear_backward(p);
  float* dy = before.dy.data() + sample * before.ld;
  kernels_.unpack_panels(count, layer.in, dx_panels, dy, before.ld);
  for (Index b = 0; b < count; ++b) {
    const float* y = before.y.data() + (sample + b) * before.ld;
    kernels_.relu_grad(layer.in, y, dy + b * before.ld, dy + b * before.ld);
  }
}

void HiddenLayers::backward_dense(std::size_t number, const SparseBatch& batch,
                                  const RuleStep& step, Team& team) {
  HiddenLayer& layer = layers_[number];
  const Activation& a = activations_[number];
  Index ldx;
  const float* x = input_of(number, batch, &ldx);
  const Index chunks = units_of(batch.count, kSampleUnit);
  for_units(team, chunks + 1, [&](Index unit, int thread) {
    if (unit == 0) {
      kernels_.pack_panels(batch.count, layer.in, x, ldx, a.x_panels.data());
    } else if (number > 0) {
      const Index sample = (unit - 1) * kSampleUnit;
      input_grads(number, sample, std::min(kSampleUnit, batch.count - sample), thread);
    }
  });
  const Index blocks = units_of(layer.out, kRowUnit);
  for_units(team, blocks + 1, [&](Index unit, int thread) {
    float* scratch = scratch_[static_cast<std::size_t>(thread)].data();
    if (unit == blocks) return update_bias(number, batch.count, step, scratch);
    const Index row = unit * kRowUnit, at = row * layer.in;
    const auto state = [&](std::size_t i) {
      return layer.weight.state(i) ? layer.weight.state(i) + at : nullptr;
    };
    LinearBackward p{};
    p.batch = batch.count;
    p.in = layer.in;
    p.out = std::min(kRowUnit, layer.out - row);
    p.dy = a.dy.data() + row;
    p.lddy = a.ld;
    p.scratch = scratch;
    p.x_panels = a.x_panels.data();
    p.weight = layer.weight.weight + at;
    p.state0 = state(0);
    p.state1 = state(1);
    p.train = true;
    p.step = &step;
    kernels_.linear_backward(p);
  });
}

void HiddenLayers::backward(const SparseBatch& batch, const SparseRuleStep& step, Team& team,
                            CollectedRows* collected) {
  for (std::size_t number = layers_.size(); number-- > 0;) {
    if (!layers_[number].sparse) backward_dense(number, batch, step.dense, team);
  }
  if (!sparse()) return;
  const HiddenLayer& layer = layers_.front();
  const Activation& a = activations_.front();
  const FeatureGroups groups = grouping_.groups();
  if (collected) {
    collected->rows.assign(groups.features, groups.features + groups.count);
    collected->grads.resize(static_cast<std::size_t>(groups.count * layer.out));
  }
  const Index units = units_of(groups.count, kFeatureUnit);
  for_units(team, units + 1, [&](Index unit, int thread) {
    if (unit == units) {
      float* sums = scratch_[static_cast<std::size_t>(thread)].data();
      return update_bias(0, batch.count, step.dense, sums);
    }
    const Index first = unit * kFeatureUnit, count = std::min(kFeatureUnit, groups.count - first);
    const RowArrays rows = rows_of(layer.weight, layer.out, layer.stride);
    if (layer.decay) layer.decay->make_good(kernels_, rows, {}, groups.features + first, count);
    kernels_.feature_update(rows, step.rows, groups, first, count, a.dy.data(), a.ld,
                            collected ? collected->grads.data() : nullptr);
  });
}

}  // namespace mh
