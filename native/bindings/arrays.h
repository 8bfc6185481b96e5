// Array types that cross from Python: C-contiguous, on the CPU, taken without copying.
//
// Arguments of these types are bound with noconvert(): a silent conversion would be a copy, and an
// update of the copy would be lost.
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>
#include <vector>

namespace mh {

namespace nb = nanobind;

using Floats = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Kernels4d = nb::ndarray<float, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Counters = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstIntegers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstDoubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatsList = std::vector<Floats>;

template <typename Array>
std::string shape_text(const Array& array) {
  std::string text = "(";
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    text += (i ? ", " : "") + std::to_string(array.shape(i));
  }
  return text + ")";
}

}  // namespace mh
