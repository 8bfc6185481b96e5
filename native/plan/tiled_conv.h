// The passes of a convolution with 3 x 3 taps and stride 1 by tiles (kernels/winograd.h).
//
// Weights are mapped once per batch and pass, when its first samples come; their two forms, for
// outputs and for input gradients, take turns in the same memory.
#pragma once

#include "plan/conv_geometry.h"
#include "plan/layer.h"

namespace mh {

class TiledConv {
 public:
  // Whether it takes less time than the plain kernels.
  static bool pays(Shape in, Shape out, Pair padding, Index batch);
  // Images at once that give the products enough rows.
  static Index least_group(Shape out);

  TiledConv(Shape in, Shape out, Pair padding, bool trained, const Setup& setup);

  void forward(const Samples& s, const float* weight, const float* bias, bool relu);
  void weight_grad(const Samples& s);
  void input_grad(const Samples& s, const float* weight);
  // What the samples since the batch began add up to.
  void write_grad(float* grad) const;

 private:
  const KernelTable* kernels_;
  const Winograd forward_, backward_;
  const Index at_once_;
  Buffer weights_, sums_, scratch_;
};

}  // namespace mh
