// A network compiled for training: built layer by layer, finished once, then run batch after batch.
//
// The weights and optimizer states belong to the caller, lie in memory shared with other processes,
// and may be changed by them at any moment: every read and write of them here races on purpose,
// because asynchronous descent tolerates stale and lost updates (Adam, section 3.2.2). Everything
// else is private to the plan. One thread at a time; nothing in train() allocates or waits.
#pragma once

#include <optional>
#include <vector>

#include "plan/cross_entropy.h"
#include "plan/layer_conv.h"
#include "plan/layer_pool.h"
#include "plan/network.h"
#include "random.h"

namespace mh {

struct Batches {
  const float* x;               // [count][input]
  const std::int64_t* targets;  // [count]
  Index count;
  Index batch_size;
  const double* rates;  // one per batch
  double* losses;       // one per batch
  std::int64_t first_step;
  // One for each layer with a factored weight, in order, each with room for `count` rows.
  std::vector<FactorRows> factors = {};
};

class Plan {
 public:
  Plan(Shape input, Index max_batch);

  // All of these throw std::invalid_argument for a layer that does not fit behind the last.
  void linear(Index outputs, Index inputs, Parameter weight, Parameter bias);
  void conv2d(Index outputs, Index channels, const ConvGeometry& geometry, Parameter weight,
              Parameter bias);
  void relu();
  void tanh();
  void sigmoid();
  void max_pool2d(const PoolGeometry& geometry);
  void average_pool2d(const PoolGeometry& geometry);
  void flatten();
  void dropout(double p);
  void cross_entropy(double label_smoothing);

  void finish(const Rule& rule, std::optional<double> clip_norm, std::uint64_t seed);

  // Returns the number of batches done: fewer than all when a loss is not finite, which stops the
  // training before that batch changes anything. Arguments are checked before the first batch.
  Index train(const Batches& batches);
  void forward(const float* x, Index count, float* out);

  Shape input() const { return input_; }
  Index max_batch() const { return max_batch_; }
  Index outputs() const { return shape_.size(); }
  const std::vector<Layer*>& factored() const { return factored_; }

 private:
  void require_open() const;
  void require_finished() const;
  void require_image(const char* layer) const;
  void require_states() const;
  void check(const Batches& b) const;
  void add(std::unique_ptr<Layer> layer);
  void place_factors(const Batches& b, Index first);
  void update(double rate, std::int64_t step, Index count);

  const Shape input_;
  const Index max_batch_;
  Shape shape_;  // of the last layer's output
  Network network_;
  std::optional<CrossEntropy> loss_;
  std::optional<Rule> rule_;  // set by finish
  std::optional<double> clip_norm_;
  std::vector<Parameter*> trained_;
  std::vector<Layer*> factored_;
  const KernelTable* kernels_ = nullptr;
  Random random_;
};

}  // namespace mh
