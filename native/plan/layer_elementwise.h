// Layers that treat every element alike: activations and dropout.
#pragma once

#include <vector>

#include "plan/layer.h"
#include "random.h"

namespace mh {

enum class Activation { kRelu, kTanh, kSigmoid };

class ActivationLayer : public Layer {
 public:
  ActivationLayer(Shape shape, Activation kind) : Layer(shape, shape), kind_(kind) {}
  void forward(const Samples& s) override;
  void backward(const Samples& s) override;
  bool keeps_output() const override { return true; }

 private:
  const Activation kind_;
};

// Zeros each element with probability p and scales the rest by 1 / (1 - p); passes all in
// evaluation.
class DropoutLayer : public Layer {
 public:
  DropoutLayer(Shape shape, double p, Random* random)
      : Layer(shape, shape), p_(p), random_(random) {}
  void allocate(const Setup& setup) override;
  void forward(const Samples& s) override;
  void backward(const Samples& s) override;

 private:
  const double p_;
  Random* const random_;
  Buffer factors_;  // [batch][size], 0 or 1 / (1 - p)
};

}  // namespace mh
