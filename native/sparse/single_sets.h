// Training with an active set for each sample, as SLIDE was published: every sample is on one
// thread from its input to the update, and updates the shared weights at once, without locks.
//
// Threads race on the weights on purpose (single_rows.h says why that is allowed). With one thread
// results depend on nothing but the seed.
#pragma once

#include <memory>

#include "sparse/feature_groups.h"
#include "sparse/figures.h"
#include "sparse/sparse_net.h"
#include "sparse/units.h"

namespace mh {

class SingleSets {
 public:
  SingleSets(SparseNet& net, const KernelTable& kernels, Index max_batch, Team& team);

  // To be called when the net has another index.
  void use_index();

  // Trains on every sample of a batch; the mean loss. A sample whose loss is not finite changes
  // nothing; those before it did.
  double train(const SparseBatch& batch, const SparseRuleStep& step, Figures& figures);

 private:
  struct Layer {
    Buffer y, dy;               // dy: in front of the ReLU
    Buffer x_panel, dx_panel;  // of a dense layer
    Buffer scratch;
  };
  // What a thread needs for a sample of its own.
  struct Seat {
    std::vector<Layer> layers;
    std::unique_ptr<LshIndex::Search> search;
    std::vector<std::int32_t> rows;
    std::vector<float> logits, grads;
    FeatureGrouping grouping;
    Figures figures;
  };
  void prepare(Seat& seat) const;
  double train_one(const SparseBatch& batch, Index sample, const SparseRuleStep& step, Seat& seat);
  void forward(const SparseBatch& batch, Index sample, Seat& seat);
  void choose(const SparseBatch& batch, Index sample, Seat& seat);
  double loss(const SparseBatch& batch, Index sample, Seat& seat) const;
  double softmax_loss(Seat& seat, Index labels, double share) const;
  double sigmoid_loss(Seat& seat, double share) const;
  void backward(const SparseBatch& batch, Index sample, const SparseRuleStep& step, Seat& seat);
  void backward_dense(std::size_t layer, const float* x, const RuleStep& step, Seat& seat);
  void backward_sparse(const SparseBatch& batch, Index sample, const RuleStep& step, Seat& seat);
  void update_bias(std::size_t layer, const RuleStep& step, Seat& seat);

  SparseNet& net_;
  const KernelTable& kernels_;
  Team& team_;
  std::vector<Seat> seats_;
  Buffer inputs_;  // of the output layer, [batch][width]: what the index sees of a batch
  std::vector<double> losses_;
};

}  // namespace mh
