// The layers in front of a wide output layer, for whole batches: every phase is cut into units of
// fixed size, so that results are the same for any number of threads.
#pragma once

#include <vector>

#include "sparse/feature_groups.h"
#include "sparse/sparse_net.h"
#include "sparse/units.h"

namespace mh {

class HiddenLayers {
 public:
  HiddenLayers(std::vector<HiddenLayer>& layers, const KernelTable& kernels, Index max_batch,
               int threads);

  void forward(const SparseBatch& batch, Team& team);
  // What the last layer gave, [batch][stride], and where its gradient belongs (in front of the
  // ReLU).
  const float* outputs() const { return activations_.back().y.data(); }
  float* output_grads() const { return activations_.back().dy.data(); }
  Index stride() const { return activations_.back().ld; }

  // Notes which features the batch has, for the update. Any one thread, any time before.
  void group_features(const SparseBatch& batch);
  // Backward through all layers, which are updated on the way. `collected` may be null.
  void backward(const SparseBatch& batch, const SparseRuleStep& step, Team& team,
                CollectedRows* collected);

  Index touched_rows() const { return sparse() ? grouping_.groups().count : 0; }
  bool sparse() const { return layers_.front().sparse; }

 private:
  struct Activation {
    Index ld;
    Buffer y, dy;
    Buffer x_panels;  // the layer's input, for its weight gradient
  };
  const float* input_of(std::size_t layer, const SparseBatch& batch, Index* ld) const;
  void forward_sparse(const SparseBatch& batch, Index sample, Index count);
  void forward_dense(std::size_t layer, const SparseBatch& batch, Index sample, Index count,
                     int thread);
  void backward_dense(std::size_t layer, const SparseBatch& batch, const RuleStep& step,
                      Team& team);
  void input_grads(std::size_t layer, Index sample, Index count, int thread);
  void update_bias(std::size_t layer, Index count, const RuleStep& step, float* sums);

  std::vector<HiddenLayer>& layers_;
  const KernelTable& kernels_;
  std::vector<Activation> activations_;
  std::vector<Buffer> scratch_;  // of each thread
  FeatureGrouping grouping_;
};

}  // namespace mh
