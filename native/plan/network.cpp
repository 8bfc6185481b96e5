#include "plan/network.h"

#include <algorithm>
#include <cstring>

namespace mh {

std::vector<Parameter*> Network::parameters() const {
  std::vector<Parameter*> all;
  for (const auto& layer : layers_) {
    for (Parameter& p : layer->parameters) all.push_back(&p);
  }
  return all;
}

std::vector<Parameter*> Network::trained_parameters() const {
  std::vector<Parameter*> trained = parameters();
  const auto frozen = [](const Parameter* p) { return !p->trained; };
  trained.erase(std::remove_if(trained.begin(), trained.end(), frozen), trained.end());
  return trained;
}

std::vector<Layer*> Network::factored_layers() const {
  std::vector<Layer*> found;
  for (const auto& layer : layers_) {
    for (const Parameter& p : layer->parameters) {
      if (p.factored) found.push_back(layer.get());
    }
  }
  return found;
}

void Network::find_extent() {
  tail_ = 0;
  while (tail_ < layers_.size() && !layers_[tail_]->whole_batch()) ++tail_;
  lowest_ = 0;
  while (lowest_ < layers_.size() && !layers_[lowest_]->trained()) ++lowest_;
}

// As many samples as keep the front's values, gradients and scratch in half of a common
// second-level cache; more than 8 gain nothing.
Index Network::choose_group(Index max_batch) const {
  constexpr Index kCacheFloats = 512 * 1024 / sizeof(float), kMost = 8;
  Index per_sample = 1, least = 1;
  for (std::size_t i = 0; i < tail_; ++i) {
    const Layer& layer = *layers_[i];
    per_sample += layer.in.size() + 2 * layer.out.size() + layer.scratch_floats();
    least = std::max(least, layer.least_group(max_batch));
  }
  return std::min({std::max(kCacheFloats / per_sample, least), kMost, max_batch});
}

// An ld that is no large power of two: such rows would share a few places of the cache.
Network::Boundary Network::make_boundary(Index size, bool whole_batch, Index max_batch) const {
  Boundary b;
  b.ld = round_up(size + kSlack, 16);
  if (b.ld % 512 == 0) b.ld += 16;
  b.whole_batch = whole_batch;
  b.data = Buffer((whole_batch ? max_batch : group_) * b.ld);
  return b;
}

void Network::allocate(const KernelTable& kernels, Shape input, Index max_batch, bool keep_grads) {
  find_extent();
  group_ = choose_group(max_batch);
  input_size_ = input.size();
  values_.clear();
  grads_.clear();
  for (std::size_t i = 0; i <= layers_.size(); ++i) {
    const Index size = i < layers_.size() ? layers_[i]->in.size() : layers_.back()->out.size();
    const bool junction = i >= tail_;
    const bool kept = (i > 0 && layers_[i - 1]->keeps_output()) ||
                      (i < layers_.size() && layers_[i]->keeps_input());
    const bool external = i == 0 && tail_ == 0;
    values_.push_back(external ? Boundary{Buffer(), input_size_, true}
                               : make_boundary(size, junction || kept, max_batch));
    const bool wanted = i > lowest_ || i == layers_.size();
    grads_.push_back(wanted ? make_boundary(size, junction, max_batch) : Boundary{});
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i]->allocate({&kernels, max_batch, group_, i > lowest_, keep_grads});
  }
}

Samples Network::samples(std::size_t layer, Index first, Index count) const {
  const Boundary &x = values_[layer], &y = values_[layer + 1];
  Samples s;
  s.first = first;
  s.count = count;
  s.x = layer == 0 && external_x_ ? external_x_ : x.at(first);
  s.ldx = x.ld;
  s.y = y.at(first);
  s.ldy = y.ld;
  return s;
}

void Network::forward_front(const float* x, Index count, bool training) {
  for (Index first = 0; first < count; first += group_) {
    const Index n = std::min(group_, count - first);
    for (Index i = 0; i < n; ++i) {
      std::memcpy(values_[0].at(first) + i * values_[0].ld, x + (first + i) * input_size_,
                  static_cast<std::size_t>(input_size_) * sizeof(float));
    }
    for (std::size_t i = 0; i < tail_; ++i) {
      Samples s = samples(i, first, n);
      s.training = training;
      layers_[i]->forward(s);
    }
  }
}

void Network::forward(const float* x, Index count, bool training) {
  if (training) {
    for (const auto& layer : layers_) layer->begin_batch();
  }
  external_x_ = tail_ == 0 ? x : nullptr;
  if (tail_ > 0) forward_front(x, count, training);
  for (std::size_t i = tail_; i < layers_.size(); ++i) {
    Samples s = samples(i, 0, count);
    s.training = training;
    layers_[i]->forward(s);
  }
}

void Network::backward_layer(std::size_t layer, Index first, Index count, const RuleStep* step) {
  Samples s = samples(layer, first, count);
  s.dy = grads_[layer + 1].at(first);
  s.lddy = grads_[layer + 1].ld;
  if (layer > lowest_) {
    s.dx = grads_[layer].at(first);
    s.lddx = grads_[layer].ld;
  }
  s.step = step;
  layers_[layer]->backward(s);
}

void Network::backward(Index count, const RuleStep* step) {
  const std::size_t stop = std::max(tail_, lowest_);
  for (std::size_t i = layers_.size(); i-- > stop;) backward_layer(i, 0, count, step);
  if (lowest_ >= tail_) return;
  for (Index first = 0; first < count; first += group_) {
    const Index n = std::min(group_, count - first);
    for (std::size_t i = tail_; i-- > lowest_;) backward_layer(i, first, n, step);
  }
  for (std::size_t i = lowest_; i < tail_; ++i) layers_[i]->end_batch();
}

}  // namespace mh
