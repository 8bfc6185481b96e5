#include "plan/layer_elementwise.h"

namespace mh {

void ActivationLayer::forward(const Samples& s) {
  const auto f = kind_ == Activation::kRelu   ? kernels->relu
                 : kind_ == Activation::kTanh ? kernels->tanh
                                              : kernels->sigmoid;
  for (Index i = 0; i < s.count; ++i) f(in.size(), s.x + i * s.ldx, s.y + i * s.ldy);
}

void ActivationLayer::backward(const Samples& s) {
  if (!s.dx) return;
  const auto f = kind_ == Activation::kRelu   ? kernels->relu_grad
                 : kind_ == Activation::kTanh ? kernels->tanh_grad
                                              : kernels->sigmoid_grad;
  for (Index i = 0; i < s.count; ++i) {
    f(in.size(), s.y + i * s.ldy, s.dy + i * s.lddy, s.dx + i * s.lddx);
  }
}

void DropoutLayer::allocate(const Setup& setup) {
  Layer::allocate(setup);
  factors_ = Buffer(setup.max_batch * in.size());
}

void DropoutLayer::forward(const Samples& s) {
  const auto limit = static_cast<std::uint32_t>(p_ * 4294967295.0);
  const float scale = p_ < 1.0 ? static_cast<float>(1.0 / (1.0 - p_)) : 0.0f;
  for (Index i = 0; i < s.count; ++i) {
    const float* x = s.x + i * s.ldx;
    float* y = s.y + i * s.ldy;
    float* factors = factors_.data() + (s.first + i) * in.size();
    for (Index j = 0; j < in.size(); ++j) {
      if (s.training) {
        factors[j] = static_cast<std::uint32_t>(random_->next() >> 32) < limit ? 0.0f : scale;
      }
      y[j] = s.training ? x[j] * factors[j] : x[j];
    }
  }
}

void DropoutLayer::backward(const Samples& s) {
  if (!s.dx) return;
  for (Index i = 0; i < s.count; ++i) {
    const float* factors = factors_.data() + (s.first + i) * in.size();
    const float* dy = s.dy + i * s.lddy;
    float* dx = s.dx + i * s.lddx;
    for (Index j = 0; j < in.size(); ++j) dx[j] = dy[j] * factors[j];
  }
}

}  // namespace mh
