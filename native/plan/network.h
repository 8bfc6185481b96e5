// A chain of layers with the activations between them, run forward and backward over a batch.
//
//   front: layers that treat each sample by itself,      tail: from the first linear layer on,
//   run in groups small enough to stay in the cache      run over the whole batch
//
//   x -> [conv -> pool -> conv -> pool] x groups      -> [linear -> linear -> linear] -> logits
//
// Activations that the backward pass reads are kept for the whole batch; the others, and the
// front's gradients, have room for one group only.
#pragma once

#include <memory>
#include <vector>

#include "plan/layer.h"

namespace mh {

class Network {
 public:
  void add(std::unique_ptr<Layer> layer) { layers_.push_back(std::move(layer)); }
  Layer* last() const { return layers_.empty() ? nullptr : layers_.back().get(); }

  // Allocates everything that passes need.
  void allocate(const KernelTable& kernels, Shape input, Index max_batch, bool keep_grads);

  // `x` holds `count` samples one after another, without slack, and stays there until backward.
  void forward(const float* x, Index count, bool training);

  // After forward, with the gradient of the loss in output_grads(). With a step, weights of linear
  // layers are updated on the way; all other gradients are left in their parameters.
  void backward(Index count, const RuleStep* step);

  const float* outputs() const { return values_.back().data.data(); }
  Index output_stride() const { return values_.back().ld; }
  float* output_grads() const { return grads_.back().data.data(); }
  Index output_grad_stride() const { return grads_.back().ld; }

  std::vector<Parameter*> trained_parameters() const;
  std::vector<Layer*> factored_layers() const;
  std::vector<Parameter*> parameters() const;

 private:
  // What lies between two layers, one row per sample.
  struct Boundary {
    Buffer data;
    Index ld = 0;
    bool whole_batch = false;
    float* at(Index first) const { return data.data() + (whole_batch ? first * ld : 0); }
  };

  Boundary make_boundary(Index size, bool whole_batch, Index max_batch) const;
  Index choose_group(Index max_batch) const;
  void find_extent();
  Samples samples(std::size_t layer, Index first, Index count) const;
  void forward_front(const float* x, Index count, bool training);
  void backward_layer(std::size_t layer, Index first, Index count, const RuleStep* step);

  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<Boundary> values_, grads_;  // [i] lies before layer i
  const float* external_x_ = nullptr;     // the caller's samples, when the first layer is linear
  Index input_size_ = 0;
  Index group_ = 1;
  std::size_t tail_ = 0;    // the first layer of the tail
  std::size_t lowest_ = 0;  // the first trained layer: gradients stop there
};

}  // namespace mh
