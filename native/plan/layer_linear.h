// A linear layer, with the ReLU behind it if there is one.
#pragma once

#include "plan/layer.h"

namespace mh {

class LinearLayer : public Layer {
 public:
  // bias.weight may be null.
  LinearLayer(Shape in, Index outputs, Parameter weight, Parameter bias);

  void allocate(const Setup& setup) override;
  void forward(const Samples& s) override;
  void backward(const Samples& s) override;
  bool whole_batch() const override { return true; }
  bool keeps_input() const override { return parameters[0].trained || parameters[0].factored; }
  void take_factors(const FactorRows& factors) override { factors_ = factors; }
  bool keeps_output() const override { return relu_; }
  bool absorb_relu() override;

 private:
  void leave_factors(const Samples& s) const;

  bool relu_ = false;
  FactorRows factors_;
  Buffer forward_scratch_, backward_scratch_, x_panels_, dx_panels_;
};

}  // namespace mh
