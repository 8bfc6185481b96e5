#include "sparse/shared_set.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sparse/huge_array.h"

namespace mh {
namespace {

constexpr Index kBlocksPerUnit = 4;  // of rows: enough for the prefetch to run ahead
constexpr Index kUnitRows = kBlocksPerUnit * kActiveBlock;
constexpr int kWidestPanel = 32;

}  // namespace

SharedSet::SharedSet(SparseNet& net, const KernelTable& kernels, Index max_batch, Team& team)
    : net_(net),
      kernels_(kernels),
      team_(team),
      panel_(2 * kernels.lanes),
      hidden_(net.hidden, kernels, max_batch, team.size()),
      losses_(static_cast<std::size_t>(max_batch)),
      places_(static_cast<std::size_t>(team.size())) {
  const Index samples = round_up(max_batch, panel_), columns = round_up(net.width, panel_);
  x_columns_ = Buffer(samples * net.width);
  x_panels_ = Buffer(max_batch * columns);
  dx_panels_ = Buffer(max_batch * columns);
  scale_ = Buffer(samples);
  active_.width = net.width;
  active_.bias = rows_of(net.bias, 1, 1);
  active_.x = hidden_.outputs();
  active_.dh = hidden_.output_grads();
  active_.ldx = hidden_.stride();
  active_.x_columns = x_columns_.data();
  active_.x_panels = x_panels_.data();
  active_.dx_panels = dx_panels_.data();
  active_.scale = scale_.data();
}

double SharedSet::train(const SparseBatch& batch, const SparseRuleStep& step,
                        CollectedRows* collected, Figures& figures) {
  Stopwatch watch;
  active_.batch = batch.count;
  active_.weight = output_rows(net_, batch.seed);
  hidden_.forward(batch, team_);
  watch.mark(figures.hidden_s);
  choose(batch);
  watch.mark(figures.choose_s);
  logits(batch);
  watch.mark(figures.logits_s);
  const double mean = loss(batch);
  watch.mark(figures.loss_s);
  if (!std::isfinite(mean)) return mean;
  input_grads();
  watch.mark(figures.gradient_s);
  if (collected) collect(collected[1]);
  update(step.rows);
  watch.mark(figures.update_s);
  hidden_.backward(batch, step, team_, collected);
  watch.mark(figures.hidden_update_s);
  count(batch, figures);
  return mean;
}

void SharedSet::choose(const SparseBatch& batch) {
  if (batch.named.offsets) {
    rows_.assign(batch.named.rows + batch.named.offsets[0],
                 batch.named.rows + batch.named.offsets[1]);
  } else {
    net_.index->see_inputs(active_.x, active_.ldx, batch.count);
    const OutputRows outputs{active_.x, active_.ldx, active_.weight, active_.bias.weight};
    net_.index->choose_shared(outputs, batch.count, batch.labels, net_.sampling, batch.seed, team_,
                              rows_);
  }
  active_.rows = rows_.data();
  active_.count = static_cast<Index>(rows_.size());
  active_.stride = active_.count | 1;
  make_room();
}

void SharedSet::make_room() {
  if (active_.stride <= room_) return;
  room_ = active_.stride + active_.stride / 4;
  w_panels_ = Buffer(room_ * round_up(net_.width, panel_));
  logits_ = Buffer(room_ * round_up(static_cast<Index>(losses_.size()), panel_));
  const auto samples = losses_.size();
  prefer_huge_pages(logits_.data(), sizeof(float) * static_cast<std::size_t>(room_) * samples);
  active_.w_panels = w_panels_.data();
  active_.logits = logits_.data();
}

void SharedSet::logits(const SparseBatch& batch) {
  for_units(team_, units_of(batch.count, panel_),
            [&](Index unit, int) { kernels_.active_columns(active_, unit); });
  for_units(team_, units_of(active_.count, kUnitRows) + 1, [&](Index unit, int) {
    if (unit == 0) return hidden_.group_features(batch);
    const Index first = (unit - 1) * kUnitRows, end = std::min(first + kUnitRows, active_.count);
    for (Index row = first; row < end; row += kActiveBlock) {
      kernels_.active_logits(active_, row, std::min(kActiveBlock, end - row));
    }
  });
}

float& SharedSet::logit(Index sample, Index row) {
  const Index at = (sample / panel_ * active_.stride + row) * panel_ + sample % panel_;
  return active_.logits[at];
}

void SharedSet::find_labels(const SparseBatch& batch, Index first, Index count,
                            std::vector<std::int32_t>& places) const {
  places.clear();
  if (!batch.labels.offsets) return;
  for (auto j = batch.labels.offsets[first]; j < batch.labels.offsets[first + count]; ++j) {
    const auto at = std::lower_bound(rows_.begin(), rows_.end(), batch.labels.labels[j]);
    places.push_back(static_cast<std::int32_t>(at - rows_.begin()));
  }
}

double SharedSet::softmax_loss(const SparseBatch& batch, Index sample, float top, float sum,
                               const std::int32_t* places) {
  const Index labels = label_count(batch.labels, sample);
  active_.scale[sample] = 0.0f;
  if (labels == 0) return std::isfinite(sum) ? 0.0 : std::numeric_limits<double>::quiet_NaN();
  active_.scale[sample] = static_cast<float>(1.0 / (static_cast<double>(sum) * batch.count));
  const float share = sum / static_cast<float>(labels);
  for (Index i = 0; i < labels; ++i) logit(sample, places[i]) -= share;
  return std::log(static_cast<double>(sum)) + static_cast<double>(top);
}

double SharedSet::sigmoid_loss(const SparseBatch& batch, Index sample, double softplus,
                               const std::int32_t* places) {
  const Index labels = label_count(batch.labels, sample);
  active_.scale[sample] = 1.0f / static_cast<float>(batch.count);
  for (Index i = 0; i < labels; ++i) logit(sample, places[i]) -= 1.0f;
  return softplus;
}

// Loss and gradient of the samples of one panel. The labels' own logits are read before the kernels
// turn all logits into gradients.
void SharedSet::panel_loss(const SparseBatch& batch, Index panel, int thread) {
  const bool softmax = net_.loss == SparseLoss::kSoftmax;
  const Index first = panel * panel_, count = std::min(panel_, batch.count - first);
  std::vector<std::int32_t>& places = places_[static_cast<std::size_t>(thread)];
  find_labels(batch, first, count, places);
  double of_labels[kWidestPanel] = {};
  const std::int32_t* place = places.data();
  for (Index b = 0; b < count; ++b) {
    const Index labels = label_count(batch.labels, first + b);
    for (Index i = 0; i < labels; ++i) of_labels[b] += logit(first + b, *place++);
    if (softmax && labels) of_labels[b] /= static_cast<double>(labels);
  }
  float tops[kWidestPanel], sums[kWidestPanel];
  double softplus[kWidestPanel];
  softmax ? kernels_.active_exponentials(active_, panel, tops, sums)
          : kernels_.active_sigmoids(active_, panel, softplus);
  place = places.data();
  for (Index b = 0; b < count; ++b) {
    const Index sample = first + b;
    const double all = softmax ? softmax_loss(batch, sample, tops[b], sums[b], place)
                               : sigmoid_loss(batch, sample, softplus[b], place);
    losses_[static_cast<std::size_t>(sample)] = all - of_labels[b];
    place += label_count(batch.labels, sample);
  }
  for (Index b = count; b < panel_; ++b) active_.scale[first + b] = 0.0f;
  kernels_.active_scaled(active_, panel);
}

double SharedSet::loss(const SparseBatch& batch) {
  for_units(team_, units_of(batch.count, panel_),
            [&](Index unit, int thread) { panel_loss(batch, unit, thread); });
  double total = 0.0;
  for (Index b = 0; b < batch.count; ++b) total += losses_[static_cast<std::size_t>(b)];
  return total / static_cast<double>(batch.count);
}

void SharedSet::input_grads() {
  const Index samples = units_of(active_.batch, panel_), columns = units_of(net_.width, panel_);
  const Index pairs = samples * columns, parts = 4 * team_.size();
  const Index unit_pairs = std::max<Index>(1, pairs / parts);
  for_units(team_, units_of(pairs, unit_pairs), [&](Index unit, int) {
    const Index first = unit * unit_pairs;
    kernels_.active_input_grad(active_, first, std::min(unit_pairs, pairs - first));
  });
}

void SharedSet::collect(CollectedRows& collected) {
  collected.rows = rows_;
  collected.grads.resize(static_cast<std::size_t>(active_.count * net_.width));
  collected.bias_grads.resize(static_cast<std::size_t>(net_.bias.weight ? active_.count : 0));
  active_.weight_grads = collected.grads.data();
  active_.bias_grads = net_.bias.weight ? collected.bias_grads.data() : nullptr;
}

void SharedSet::update(const RuleStep& step) {
  for_units(team_, units_of(active_.count, kUnitRows), [&](Index unit, int) {
    const Index first = unit * kUnitRows, end = std::min(first + kUnitRows, active_.count);
    for (Index row = first; row < end; row += kActiveBlock) {
      const Index count = std::min(kActiveBlock, end - row);
      if (net_.decay) {
        net_.decay->make_good(kernels_, active_.weight, active_.bias, active_.rows + row, count);
      }
      kernels_.active_update(active_, step, row, count);
    }
    net_.moved(active_.rows + first, end - first);
  });
  active_.weight_grads = active_.bias_grads = nullptr;
}

void SharedSet::count(const SparseBatch& batch, Figures& figures) const {
  const auto row_bytes = [](Index width) { return width * static_cast<Index>(sizeof(float)); };
  const auto copies = static_cast<Index>(1 + net_.weight.states.size());
  figures.active_rows += active_.count;
  figures.feature_rows += hidden_.touched_rows();
  const Index wide = row_bytes(net_.width + 1) * (1 + 2 * copies);
  figures.bytes += active_.count * (wide - net_.saved_bytes());
  if (!hidden_.sparse()) return;
  const Index width = row_bytes(net_.hidden.front().out);
  figures.bytes += (batch.x.offsets[batch.count] - batch.x.offsets[0]) * width;
  figures.bytes += hidden_.touched_rows() * width * 2 * copies;
}

}  // namespace mh
