#include "sparse/trainer.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/dispatch.h"
#include "sparse/huge_array.h"

namespace mh {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

void require(bool condition, const std::string& message) {
  if (!condition) refuse(message);
}

void require_states(const Parameter& p, const Rule& rule) {
  const auto expected = static_cast<std::size_t>(rule.states());
  if (p.weight && p.states.size() != expected) {
    refuse("A trained weight came with " + std::to_string(p.states.size()) +
           " state arrays; expected " + std::to_string(expected) + " for this rule.");
  }
}

void require_stride(Index stride, Index width) {
  require(stride >= width, "Rows are " + std::to_string(stride) +
                               " floats apart; expected at least " +
                               std::to_string(width) + ", their width.");
}

void use_huge_pages(const Parameter& p, Index width, Index stride) {
  const Index floats = p.size ? (p.size / width - 1) * stride + width : 0;
  const std::size_t bytes = static_cast<std::size_t>(floats) * sizeof(float);
  join_huge_pages(p.weight, bytes);
  for (float* state : p.states) join_huge_pages(state, bytes);
}

bool follows_rows(const Rule& rule) {
  return rule.kind == RuleKind::kSgd || rule.kind == RuleKind::kAdagrad ||
         rule.kind == RuleKind::kAdam || rule.kind == RuleKind::kAdamW;
}

void require_ascending(const std::int64_t* offsets, Index count, const char* what) {
  require(offsets[0] >= 0, std::string("The offsets of ") + what + " begin below 0.");
  for (Index i = 0; i < count; ++i) {
    if (offsets[i] <= offsets[i + 1]) continue;
    refuse(std::string("The offsets of ") + what + " fall at " + std::to_string(i + 1) +
           "; expected them ascending.");
  }
}

void require_below(const std::int64_t* offsets, Index count, const std::int32_t* numbers, Index end,
                   const char* what) {
  for (std::int64_t j = offsets[0]; j < offsets[count]; ++j) {
    if (numbers[j] >= 0 && numbers[j] < end) continue;
    refuse(std::string("A ") + what + " is " + std::to_string(numbers[j]) + "; expected 0 to " +
           std::to_string(end - 1) + ".");
  }
}

}  // namespace

SparseTrainer::SparseTrainer(Index max_batch, int threads)
    : max_batch_(max_batch), team_(threads) {
  if (max_batch < 1) refuse("A trainer needs batches of at least 1 sample.");
}

void SparseTrainer::require_open() const {
  if (rule_) refuse("The trainer is finished; add layers before finish().");
}

void SparseTrainer::hidden(HiddenLayer layer) {
  require_open();
  if (net_.weight.weight) refuse("The output layer was given; add hidden layers before it.");
  if (!net_.hidden.empty()) {
    const Index given = net_.hidden.back().out;
    if (layer.sparse) refuse("A sparse layer follows another; expected it to be the first.");
    if (layer.in != given) {
      refuse("A hidden layer takes " + std::to_string(layer.in) + " inputs; expected " +
             std::to_string(given) + ", what the layer before gives.");
    }
  }
  if (layer.sparse) require_stride(layer.stride, layer.out);
  net_.hidden.push_back(std::move(layer));
}

void SparseTrainer::output(Index neurons, Index width, Index stride, Parameter weight,
                           Parameter bias) {
  require_open();
  if (net_.hidden.empty()) refuse("The output layer is the first; expected a hidden layer before.");
  if (width != net_.hidden.back().out) {
    refuse("The output layer takes " + std::to_string(width) + " inputs; expected " +
           std::to_string(net_.hidden.back().out) + ", what the layer before gives.");
  }
  require_stride(stride, width);
  net_.neurons = neurons;
  net_.width = width;
  net_.stride = stride;
  net_.weight = std::move(weight);
  net_.bias = std::move(bias);
}

void SparseTrainer::choose_by(LshIndex* index, const SamplingSettings& sampling) {
  net_.index = index;
  net_.sampling = sampling;
  if (single_) single_->use_index();
}

void SparseTrainer::finish(const Rule& rule, Sharing share, SparseLoss loss, bool collect,
                           bool narrow) {
  require_open();
  if (!net_.weight.weight) refuse("The trainer has no output layer; call output() first.");
  if (!collect && !follows_rows(rule)) {
    refuse("The rule moves rows that have no gradient; expected sgd without momentum, adagrad, "
           "adam or adamw.");
  }
  if (collect && share == Sharing::kSample) {
    refuse("Gradients are collected by batches; expected share='batch'.");
  }
  if (collect && narrow) {
    refuse("Gradients are collected for weights that others move; expected them in float32.");
  }
  if (narrow && net_.stride != net_.width) {
    refuse("The weight's states lie between its rows; expected them apart, where it is bfloat16.");
  }
  for (const HiddenLayer& layer : net_.hidden) {
    if (!(collect && layer.sparse)) require_states(layer.weight, rule);
    require_states(layer.bias, rule);
  }
  if (!collect) {
    require_states(net_.weight, rule);
    require_states(net_.bias, rule);
  }
  net_.share = share;
  net_.loss = loss;
  for (const HiddenLayer& layer : net_.hidden) {
    layer.sparse ? use_huge_pages(layer.weight, layer.out, layer.stride)
                 : use_huge_pages(layer.weight, layer.in, layer.in);
  }
  use_huge_pages(net_.weight, net_.width, net_.stride);
  if (narrow) {
    narrow_ = std::make_unique<NarrowWeight>(net_.neurons, net_.width);
    net_.narrow = narrow_.get();
    take_weight();
  }
  if (!collect && rule.settings.weight_decay != 0.0) {
    const auto decaying = [&](Index rows) {
      decays_.push_back(std::make_unique<RowDecay>(rows, rule.settings.weight_decay));
      return decays_.back().get();
    };
    net_.decay = decaying(net_.neurons);
    HiddenLayer& first = net_.hidden.front();
    if (first.sparse) first.decay = decaying(first.in);
  }
  const KernelTable& table = kernels();
  if (share == Sharing::kBatch) {
    shared_ = std::make_unique<SharedSet>(net_, table, max_batch_, team_);
  } else {
    single_ = std::make_unique<SingleSets>(net_, table, max_batch_, team_);
  }
  collect_ = collect;
  rule_ = rule;
}

void SparseTrainer::check(const SparsePiece& p) const {
  if (!rule_) refuse("The trainer is not finished; call finish() first.");
  if (p.batch_size < 1 || p.batch_size > max_batch_) {
    refuse("The batch size is " + std::to_string(p.batch_size) + "; expected 1 to the trainer's " +
           std::to_string(max_batch_) + ".");
  }
  require(p.first_step >= 1,
          "The first step is " + std::to_string(p.first_step) + "; steps count from 1.");
  check_features(p);
  check_labels(p);
  require(net_.index || p.named.offsets,
          "The trainer has no index; expected the active neurons to be named.");
  if (p.named.offsets) check_named(p);
}

void SparseTrainer::check_features(const SparsePiece& p) const {
  const HiddenLayer& first = net_.hidden.front();
  if (!first.sparse) {
    return require(p.dense || p.count == 0, "The first layer is dense; expected dense inputs.");
  }
  require(p.x.offsets, "The first layer is sparse; expected offsets, columns and values.");
  require_ascending(p.x.offsets, p.count, "the features");
  require_below(p.x.offsets, p.count, p.x.columns, first.in, "feature");
}

void SparseTrainer::check_labels(const SparsePiece& p) const {
  if (!p.labels.offsets) return;
  require_ascending(p.labels.offsets, p.count, "the labels");
  require_below(p.labels.offsets, p.count, p.labels.labels, net_.neurons, "label");
}

// Named rows must be what the index would give: ascending, each once, every label among them.
void SparseTrainer::check_named(const SparsePiece& p) const {
  const bool each = net_.share == Sharing::kSample;
  const Index samples = each ? 1 : p.batch_size, sets = units_of(p.count, samples);
  require_ascending(p.named.offsets, sets, "the active neurons");
  require_below(p.named.offsets, sets, p.named.rows, net_.neurons, "active neuron");
  for (Index set = 0; set < sets; ++set) {
    const std::int32_t* first = p.named.rows + p.named.offsets[set];
    const std::int32_t* end = p.named.rows + p.named.offsets[set + 1];
    require(std::adjacent_find(first, end, std::greater_equal<>()) == end,
            "The active neurons are not in order; expected them ascending, each once.");
    if (!p.labels.offsets) continue;
    const Index last = std::min(p.count, (set + 1) * samples);
    for (auto j = p.labels.offsets[set * samples]; j < p.labels.offsets[last]; ++j) {
      if (std::binary_search(first, end, p.labels.labels[j])) continue;
      refuse("Label " + std::to_string(p.labels.labels[j]) +
             " is not among the active neurons; expected all labels of the batch to be.");
    }
  }
}

SparseBatch SparseTrainer::batch_of(const SparsePiece& p, Index number) const {
  const Index first = number * p.batch_size;
  SparseBatch batch;
  batch.count = std::min(p.batch_size, p.count - first);
  if (p.x.offsets) {
    batch.x = {p.x.offsets + first, p.x.columns, p.x.values};
    batch.features_end = p.x.offsets[p.count];
  }
  if (p.dense) batch.dense = p.dense + first * net_.hidden.front().in;
  if (p.labels.offsets) batch.labels = {p.labels.offsets + first, p.labels.labels};
  if (p.named.offsets) {
    const Index set = net_.share == Sharing::kSample ? first : number;
    batch.named = {p.named.offsets + set, p.named.rows};
  }
  batch.seed = p.seed + static_cast<std::uint64_t>(number);
  return batch;
}

SparseRuleStep SparseTrainer::step_of(double rate, std::int64_t step) const {
  SparseRuleStep at{at_step(*rule_, rate, step, 1.0), {}};
  at.rows = collect_ ? at_step(Rule("sgd", {}), rate, step, 1.0) : at.dense;
  if (at.rows.kind == RuleKind::kAdamW) at.rows.kind = RuleKind::kAdam;  // which it is without decay
  at.rows.decay = 0.0f;  // rows make it good by themselves
  return at;
}

void SparseTrainer::take_weight() {
  if (narrow_) narrow_->take(net_.weight.weight, kernels(), team_);
}

Index SparseTrainer::train(const SparsePiece& p) {
  check(p);
  const Index done = train_batches(p);
  if (narrow_) narrow_->write_back(net_.weight.weight, kernels(), team_);
  return done;
}

void SparseTrainer::catch_up() {
  const HiddenLayer& first = net_.hidden.front();
  if (first.decay) {
    const RowArrays rows = rows_of(first.weight, first.out, first.stride);
    first.decay->make_all_good(kernels(), rows, {}, team_);
  }
  if (!net_.decay) return;
  const RowArrays weight = output_rows(net_, static_cast<std::uint64_t>(figures_.batches));
  net_.decay->make_all_good(kernels(), weight, rows_of(net_.bias, 1, 1), team_);
  if (narrow_) {
    narrow_->mark_all_changed();
    narrow_->write_back(net_.weight.weight, kernels(), team_);
  }
}

Index SparseTrainer::train_batches(const SparsePiece& p) {
  const Index batches = units_of(p.count, p.batch_size);
  for (Index number = 0; number < batches; ++number) {
    const SparseBatch batch = batch_of(p, number);
    const SparseRuleStep step = step_of(p.rates[number], p.first_step + number);
    for (const auto& decay : decays_) decay->count_step(p.rates[number]);
    const double loss = shared_
                            ? shared_->train(batch, step, collect_ ? collected_ : nullptr, figures_)
                            : single_->train(batch, step, figures_);
    p.losses[number] = loss;
    if (!std::isfinite(loss)) return number;
    figures_.batches += 1;
    figures_.samples += batch.count;
  }
  return batches;
}

}  // namespace mh
