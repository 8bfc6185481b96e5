// The backward pass of a convolution by lists of what is not zero (kernels/conv_by_lists.h).
//
// Images are turned as many at a time as the first-level cache has room for.
#pragma once

#include <vector>

#include "plan/conv_geometry.h"
#include "plan/layer.h"

namespace mh {

class ConvByLists {
 public:
  // Whether there are kernels for it, and channels enough to fill a vector.
  static bool suits(Shape in, const ConvGeometry& geometry, Index lanes);

  ConvByLists(Shape in, Shape out, const ConvGeometry& geometry, const Setup& setup);

  // Lists dy for the passes below. Returns the share of all multiply-adds that is left; lanes
  // without a channel count.
  double list(const Images& dy);
  void add_weight_grad(const Images& x);
  void input_grad(const float* weight, const Images& dx, bool new_weight);
  // What was added since the last time.
  void write_grad(float* grad);

 private:
  // Calls body(lists, first image, images).
  template <typename Body>
  void for_each_part(const Body& body);
  // Calls body(weight's place, turned weight's place).
  template <typename Body>
  void for_each_weight(const Body& body) const;

  const KernelTable* kernels_;
  const ListedConv conv_;
  const Index at_once_;  // images
  Index listed_ = 0;     // images
  std::vector<std::uint32_t> windows_;
  std::vector<Index> ends_;
  Buffer values_, turned_x_, turned_dx_, turned_weights_, turned_grad_;
};

}  // namespace mh
