// Array types that cross from Python: C-contiguous, on the CPU, taken without copying.
//
// Arguments of these types are bound with noconvert(): a silent conversion would be a copy, and an
// update of the copy would be lost.
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace mh {

namespace nb = nanobind;

using Floats = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
// Matrices whose rows may lie apart (see row_stride).
using Rows = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using ConstRows = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using RowsList = std::vector<Rows>;
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

// Floats from a row to the next. Throws std::invalid_argument where a row is not one piece.
template <typename Array>
std::ptrdiff_t row_stride(const Array& rows) {
  const auto width = static_cast<std::ptrdiff_t>(rows.shape(1));
  const std::ptrdiff_t stride = rows.shape(0) > 1 ? rows.stride(0) : width;
  if ((width > 1 && rows.stride(1) != 1) || stride < width) {
    throw std::invalid_argument("A matrix of shape " + shape_text(rows) + " has strides of " +
                                std::to_string(rows.stride(0)) + " and " +
                                std::to_string(rows.stride(1)) +
                                "; expected rows in one piece each, one after another.");
  }
  return stride;
}

}  // namespace mh
