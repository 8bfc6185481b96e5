// The fast path of sparse layers: trains a net with a wide output layer, batch after batch, with
// nothing of Python in between.
//
// The weights and states belong to the caller. One call at a time.
#pragma once

#include <memory>
#include <optional>

#include "sparse/shared_set.h"
#include "sparse/single_sets.h"

namespace mh {

// Consecutive batches of samples.
struct SparsePiece {
  Index count = 0, batch_size = 0;
  SparseRows x;                  // offsets [count + 1]
  const float* dense = nullptr;  // [count][in], where the first layer is dense
  LabelRows labels{};            // offsets [count + 1]
  NamedRows named;               // see SparseBatch
  const double* rates = nullptr;  // one per batch
  double* losses = nullptr;       // one per batch
  std::int64_t first_step = 1;
  std::uint64_t seed = 0;  // of the first batch; the next one has the next number
};

class SparseTrainer {
 public:
  SparseTrainer(Index max_batch, int threads);

  // All throw std::invalid_argument for what does not fit.
  void hidden(HiddenLayer layer);
  // Rows of the weight, and of each of its states, begin `stride` floats after one another.
  void output(Index neurons, Index width, Index stride, Parameter weight, Parameter bias);
  // The index must outlive the trainer, or be replaced by another.
  void choose_by(LshIndex* index, const SamplingSettings& sampling);
  // `collect`: rows take a plain step, and their gradients are kept for collected(). `narrow`: the
  // output layer's weight is trained as bfloat16, and written back after every call of train.
  void finish(const Rule& rule, Sharing share, SparseLoss loss, bool collect, bool narrow);

  // Returns the number of batches done: fewer than all when a loss is not finite, which stops the
  // training before that batch changes anything (before that sample, where each has its own active
  // set). Arguments are checked before the first batch.
  Index train(const SparsePiece& piece);

  // Reads the output layer's weight again, which somebody else has changed.
  void take_weight();

  // Lets all rows decay that have missed some decay, for somebody who looks at the weights.
  void catch_up();

  const SparseNet& net() const { return net_; }
  const Figures& figures() const { return figures_; }
  // Of the last batch: the input layer's rows and the output layer's.
  const CollectedRows* collected() const { return collected_; }

 private:
  void require_open() const;
  void check(const SparsePiece& piece) const;
  void check_features(const SparsePiece& piece) const;
  void check_labels(const SparsePiece& piece) const;
  void check_named(const SparsePiece& piece) const;
  SparseBatch batch_of(const SparsePiece& piece, Index number) const;
  Index train_batches(const SparsePiece& piece);
  SparseRuleStep step_of(double rate, std::int64_t step) const;

  const Index max_batch_;
  Team team_;
  SparseNet net_;
  std::optional<Rule> rule_;  // set by finish
  bool collect_ = false;
  CollectedRows collected_[2];
  std::unique_ptr<NarrowWeight> narrow_;
  std::vector<std::unique_ptr<RowDecay>> decays_;
  std::unique_ptr<SharedSet> shared_;
  std::unique_ptr<SingleSets> single_;
  Figures figures_;
};

}  // namespace mh
