// A batch against its active neurons: the arrays that the kernels of a wide output layer share.
//
// The active set is shared by the whole batch, so that its rows of the weight are gathered once and
// everything becomes small dense products. All arrays are cut into panels, as many columns as a
// tile of tiles.h has (kPanel, two vectors), so that a tile reads each of its operands in one
// stream:
//
//   x_columns [batch / kPanel][width][kPanel]    samples side by side, for the logits
//   w_panels  [width / kPanel][stride][kPanel]   active rows, for the logits and the input gradient
//   logits    [batch / kPanel][stride][kPanel]   samples side by side; their gradients later
//   x_panels  [width / kPanel][batch][kPanel]    samples scaled, for the weight gradient
//   dx_panels [width / kPanel][batch][kPanel]
//
// The gradient of a logit is scale[sample] * what `logits` holds in the end: the scale joins x and
// dx, which are small, instead of another walk over all logits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mh {

using Index = std::ptrdiff_t;

// Rows that are gathered and updated together: a block of them fits the first-level cache.
constexpr Index kActiveBlock = 24;

// Rows of a parameter with its states, of which only some are touched.
struct RowArrays {
  Index width = 0;
  // Floats from a row to the next, of the weight and of its states: more than a width where the
  // states of a row lie behind it.
  Index stride = 0;
  float* weight = nullptr;
  float* state0 = nullptr;  // null where the rule keeps fewer
  float* state1 = nullptr;
  // Not null: the weight is read and written here, as bfloat16 (narrow_rows.h), and `weight` is
  // brought up to date by whoever asks for it.
  std::uint16_t* narrow = nullptr;
  std::uint32_t salt = 0;  // of what is random in its rounding
};

struct ActiveBatch {
  Index batch = 0, width = 0;
  Index count = 0;   // active neurons
  Index stride = 0;  // rows from one panel to the next: odd, or panels evict each other
  const std::int32_t* rows = nullptr;  // [count]
  RowArrays weight;
  RowArrays bias;  // of width 1; its weight is null where the layer has none
  const float* x = nullptr;
  Index ldx = 0;
  float* x_columns = nullptr;
  float* w_panels = nullptr;
  float* logits = nullptr;
  float* x_panels = nullptr;
  float* dx_panels = nullptr;
  float* scale = nullptr;  // [batch], zeros behind it to a whole panel
  float* dh = nullptr;     // [batch][ldx]: the gradient in front of the ReLU that made x
  float* weight_grads = nullptr;  // [count][width], or null: gradients that somebody collects
  float* bias_grads = nullptr;    // [count]
};

// One feature of one sample, as the update of the feature's row reads it.
struct FeatureEntry {
  std::int32_t sample;
  float value;
};

// Features of a batch, each once, with their entries: those of feature i are starts[i] to
// starts[i + 1].
struct FeatureGroups {
  Index count = 0;
  const std::int32_t* features = nullptr;
  const std::int32_t* starts = nullptr;
  const FeatureEntry* entries = nullptr;
};

// Samples as rows of features, compressed. values null: all ones.
struct SparseRows {
  const std::int64_t* offsets = nullptr;
  const std::int32_t* columns = nullptr;
  const float* values = nullptr;
};

}  // namespace mh
