// A net with a wide output layer as the native trainer sees it: parameters, a batch, and one step.
//
//   sparse or dense input -> linear, ReLU -> (linear, ReLU)* -> active neurons of a wide layer
//   -> loss
#pragma once

#include <cstdint>
#include <vector>

#include "plan/layer.h"
#include "sparse/active_batch.h"
#include "sparse/lsh_index.h"
#include "sparse/mixing.h"
#include "sparse/narrow_weight.h"
#include "sparse/row_decay.h"

namespace mh {

enum class Sharing { kBatch, kSample };
enum class SparseLoss { kSoftmax, kSigmoid };

// A linear layer with a ReLU behind it. A sparse one has a row of its weight for each input, the
// others for each output.
struct HiddenLayer {
  bool sparse = false;
  Index in = 0, out = 0;
  Index stride = 0;  // floats from a row of a sparse one's weight to the next
  Parameter weight, bias;
  RowDecay* decay = nullptr;  // of a sparse one's rows, where the rule lets weights decay
};

struct SparseNet {
  std::vector<HiddenLayer> hidden;
  Index neurons = 0, width = 0;    // of the output layer
  Index stride = 0;                // floats from a row of its weight to the next
  Parameter weight, bias;          // bias.weight is null where there is none
  NarrowWeight* narrow = nullptr;  // not null: trained in place of the weight
  RowDecay* decay = nullptr;       // where the rule lets weights decay
  LshIndex* index = nullptr;       // null: the caller names the active neurons
  SamplingSettings sampling{};
  Sharing share = Sharing::kBatch;
  SparseLoss loss = SparseLoss::kSoftmax;

  // Says that these rows of the output layer have moved; any thread.
  void moved(const std::int32_t* rows, Index count) const {
    if (index) index->mark_changed(rows, count);
    if (narrow) narrow->mark_changed(rows, count);
  }

  // What a narrow weight saves of a row that is read for the logits, and read and written by the
  // update.
  Index saved_bytes() const { return narrow ? 3 * 2 * width : 0; }
};

inline RowArrays rows_of(const Parameter& p, Index width, Index stride) {
  return {width, stride, p.weight, p.state(0), p.state(1), nullptr, 0};
}

// The output layer's, for what a seed makes random.
inline RowArrays output_rows(const SparseNet& net, std::uint64_t seed) {
  RowArrays rows = rows_of(net.weight, net.width, net.stride);
  if (net.narrow) {
    rows.narrow = net.narrow->data();
    rows.salt = static_cast<std::uint32_t>(mixed(seed));
  }
  return rows;
}

inline Index label_count(const LabelRows& labels, Index sample) {
  return labels.offsets ? labels.offsets[sample + 1] - labels.offsets[sample] : 0;
}

// Active neurons that a caller names instead of the index: a row of them for each batch, or for
// each sample where every sample has its own.
struct NamedRows {
  const std::int64_t* offsets = nullptr;
  const std::int32_t* rows = nullptr;
};

// Samples of one batch; all pointers are those of its first sample.
struct SparseBatch {
  Index count = 0;
  SparseRows x;              // of a sparse input layer
  Index features_end = 0;    // of x.columns, which goes on behind the batch
  const float* dense = nullptr;  // [count][in], of a dense one
  LabelRows labels{};
  NamedRows named;
  std::uint64_t seed = 0;  // of the choice of active neurons
};

// The rule at one step: as dense parameters take it, and rows.
struct SparseRuleStep {
  RuleStep dense, rows;
};

// Gradients of rows, kept for somebody who sends them elsewhere.
struct CollectedRows {
  std::vector<std::int32_t> rows;
  std::vector<float> grads;       // [rows][width]
  std::vector<float> bias_grads;  // [rows], of the output layer
};

}  // namespace mh
