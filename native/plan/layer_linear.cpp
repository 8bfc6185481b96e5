#include "plan/layer_linear.h"

#include <cstring>
#include <utility>

namespace mh {

LinearLayer::LinearLayer(Shape in, Index outputs, Parameter weight, Parameter bias)
    : Layer(in, Shape{outputs}) {
  parameters.push_back(std::move(weight));
  if (bias.weight) parameters.push_back(std::move(bias));
}

void LinearLayer::allocate(const Setup& setup) {
  Layer::allocate(setup);
  forward_scratch_ = Buffer(linear_forward_scratch(setup.max_batch, in.size()));
  const Index panels = panel_floats(setup.max_batch, in.size());
  if (parameters[0].trained) x_panels_ = Buffer(panels);
  backward_scratch_ = Buffer(linear_backward_scratch(setup.max_batch));
  if (setup.wants_dx) dx_panels_ = Buffer(panels);
  if (setup.keep_grads && parameters[0].trained) parameters[0].grad = Buffer(parameters[0].size);
  parameters[0].updated_in_backward = !setup.keep_grads;
  if (parameters.size() > 1) parameters[1].grad = Buffer(out.size());
}

bool LinearLayer::absorb_relu() {
  if (relu_) return false;
  relu_ = true;
  return true;
}

void LinearLayer::forward(const Samples& s) {
  const float* bias = parameters.size() > 1 ? parameters[1].weight : nullptr;
  kernels->linear_forward({s.count, in.size(), out.size(), s.x, s.ldx, parameters[0].weight, bias,
                           s.y, s.ldy, relu_, forward_scratch_.data()});
}

void LinearLayer::leave_factors(const Samples& s) const {
  const auto copy = [&](Index width, const float* from, Index ld, float* to) {
    for (Index i = 0; i < s.count; ++i) {
      std::memcpy(to + i * width, from + i * ld, static_cast<std::size_t>(width) * sizeof(float));
    }
  };
  copy(in.size(), s.x, s.ldx, factors_.a);
  copy(out.size(), s.dy, s.lddy, factors_.d);
}

void LinearLayer::backward(const Samples& s) {
  if (relu_) {
    for (Index i = 0; i < s.count; ++i) {
      float* dy = s.dy + i * s.lddy;
      kernels->relu_grad(out.size(), s.y + i * s.ldy, dy, dy);
    }
  }
  Parameter& weight = parameters[0];
  if (parameters.size() > 1 && parameters[1].trained) {
    kernels->column_sums(s.count, out.size(), s.dy, s.lddy, parameters[1].grad.data());
  }
  if (weight.factored) leave_factors(s);
  if (weight.trained) kernels->pack_panels(s.count, in.size(), s.x, s.ldx, x_panels_.data());
  if (!weight.trained && !s.dx) return;
  LinearBackward p{};
  p.batch = s.count;
  p.in = in.size();
  p.out = out.size();
  p.dy = s.dy;
  p.lddy = s.lddy;
  p.scratch = backward_scratch_.data();
  p.x_panels = x_panels_.data();
  p.dx_panels = s.dx ? dx_panels_.data() : nullptr;
  p.weight = weight.weight;
  p.state0 = weight.state(0);
  p.state1 = weight.state(1);
  p.train = weight.trained;
  p.grad = s.step ? nullptr : weight.grad.data();
  p.step = s.step;
  kernels->linear_backward(p);
  if (s.dx) kernels->unpack_panels(s.count, in.size(), dx_panels_.data(), s.dx, s.lddx);
}

}  // namespace mh
