// How a convolution's windows lie on its image.
#pragma once

#include <array>

#include "kernels/kernel_table.h"

namespace mh {

using Pair = std::array<Index, 2>;  // vertical, horizontal

struct ConvGeometry {
  Pair kernel, stride, padding, dilation;
};

}  // namespace mh
