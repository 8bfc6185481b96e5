// Training with one active set for the whole batch.
//
// Every phase is cut into units that one thread computes in a fixed order, and no two units write
// the same number: no locks, no races, and the same result for any number of threads.
//
//   1  hidden layers forward                        by samples
//   2  the active set is chosen                     the index
//   3  active rows gathered, logits                 by rows      (meanwhile: features grouped)
//   4  loss, gradients of the logits                by samples
//      -- a loss that is not finite ends here, before anything changed --
//   5  gradient of the hidden outputs               by samples and columns
//   6  weight gradient and update of active rows    by rows
//   7  hidden layers backward and update            by rows
#pragma once

#include "sparse/figures.h"
#include "sparse/hidden_layers.h"

namespace mh {

class SharedSet {
 public:
  SharedSet(SparseNet& net, const KernelTable& kernels, Index max_batch, Team& team);

  // Trains on a batch; its loss. `collected` is null, or two places: for the input layer's rows and
  // the output layer's.
  double train(const SparseBatch& batch, const SparseRuleStep& step, CollectedRows* collected,
               Figures& figures);

 private:
  void choose(const SparseBatch& batch);
  void make_room();
  void logits(const SparseBatch& batch);
  double loss(const SparseBatch& batch);
  void panel_loss(const SparseBatch& batch, Index panel, int thread);
  double softmax_loss(const SparseBatch& batch, Index sample, float top, float sum,
                      const std::int32_t* places);
  double sigmoid_loss(const SparseBatch& batch, Index sample, double softplus,
                      const std::int32_t* places);
  void find_labels(const SparseBatch& batch, Index first, Index count,
                   std::vector<std::int32_t>& places) const;
  float& logit(Index sample, Index row);
  void input_grads();
  void update(const RuleStep& step);
  void collect(CollectedRows& rows);
  void count(const SparseBatch& batch, Figures& figures) const;

  SparseNet& net_;
  const KernelTable& kernels_;
  Team& team_;
  const Index panel_;
  HiddenLayers hidden_;
  ActiveBatch active_;
  std::vector<std::int32_t> rows_;
  Index room_ = 0;  // rows that the buffers below hold
  Buffer x_columns_, x_panels_, dx_panels_, scale_, w_panels_, logits_;
  std::vector<double> losses_;
  std::vector<std::vector<std::int32_t>> places_;  // of each thread: its labels among the rows
};

}  // namespace mh
