// Max and average pooling.
#pragma once

#include <array>
#include <vector>

#include "plan/layer.h"

namespace mh {

struct PoolGeometry {
  std::array<Index, 2> kernel, stride, padding;  // vertical, horizontal
};

// With the ReLU behind it if there is one. Windows of 2 x 2 side by side have kernels of their own.
class MaxPoolLayer : public Layer {
 public:
  // Throws std::invalid_argument when the window does not fit.
  MaxPoolLayer(Shape in, const PoolGeometry& geometry);

  void allocate(const Setup& setup) override;
  void forward(const Samples& s) override;
  void backward(const Samples& s) override;
  bool keeps_output() const override { return relu_; }
  bool absorb_relu() override { return relu_ ? false : (relu_ = true); }

 private:
  void pool_image(const float* x, float* y, std::int32_t* chosen) const;
  void spread_image(const float* y, const float* dy, const std::int32_t* chosen, float* dx) const;

  const Pool pool_;
  const bool two_by_two_;
  bool relu_ = false;
  Index stride_ = 0;                   // notes per sample
  std::vector<std::uint8_t> quarter_;  // 2 x 2: which of the four
  std::vector<std::int32_t> place_;    // otherwise: where in the plane
};

// Pixels of the padding count as zeros, as in PyTorch by default.
class AveragePoolLayer : public Layer {
 public:
  AveragePoolLayer(Shape in, const PoolGeometry& geometry);
  void forward(const Samples& s) override;
  void backward(const Samples& s) override;

 private:
  const Pool pool_;
};

}  // namespace mh
