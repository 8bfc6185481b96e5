// Python's way to products of samples with rows of their own: row_products.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "kernels/dispatch.h"
#include "sparse/units.h"

using namespace nanobind::literals;

namespace mh {
namespace {

using ConstLine = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Line = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Fewer multiplications than this are done before another thread would have woken up.
constexpr Index kWorthThreads = 1 << 18;

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

std::string number(std::size_t n) { return std::to_string(n); }

std::vector<std::int32_t> checked_rows(const ConstIntegers& rows, std::size_t height) {
  std::vector<std::int32_t> narrow(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t row = rows.data()[i];
    require(row >= 0 && row < static_cast<std::int64_t>(height),
            "A row number is " + std::to_string(row) + "; expected 0 to " + number(height - 1) +
                ".");
    narrow[i] = static_cast<std::int32_t>(row);
  }
  return narrow;
}

void require_offsets(const ConstIntegers& offsets, std::size_t samples, std::size_t rows) {
  require(offsets.size() == samples + 1, "There are " + number(offsets.size()) +
                                             " offsets; expected " + number(samples + 1) +
                                             ", one more than samples.");
  const std::int64_t* ends = offsets.data();
  require(ends[0] == 0 && ends[samples] == static_cast<std::int64_t>(rows) &&
              std::is_sorted(ends, ends + samples + 1),
          "The offsets must rise from 0 to the number of rows, " + number(rows) + ".");
}

void row_products(const ConstMatrix& x, const ConstRows& weight,
                  const std::optional<ConstLine>& bias, const ConstIntegers& offsets,
                  const ConstIntegers& rows, const Line& out, int threads) {
  require(x.shape(1) == weight.shape(1), "x has shape " + shape_text(x) + "; expected rows of " +
                                             number(weight.shape(1)) + ", the weight's width.");
  require(!bias || bias->size() == weight.shape(0),
          "The bias has shape " + (bias ? shape_text(*bias) : "") + "; expected (" +
              number(weight.shape(0)) + ").");
  require(out.size() == rows.size(), "out has shape " + shape_text(out) + "; expected (" +
                                         number(rows.size()) + "), a number for each row.");
  require_offsets(offsets, x.shape(0), rows.size());
  const std::vector<std::int32_t> narrow = checked_rows(rows, weight.shape(0));
  const auto width = static_cast<Index>(weight.shape(1));
  const auto samples = static_cast<Index>(x.shape(0));
  // The kernel takes rows as a trainer has them, which writes to its own; here they are read.
  const RowArrays arrays{width, row_stride(weight), const_cast<float*>(weight.data()), nullptr,
                         nullptr};
  const float* biases = bias ? bias->data() : nullptr;
  const std::int64_t* ends = offsets.data();
  const float* inputs = x.data();
  float* outputs = out.data();
  const nb::gil_scoped_release release;
  const bool small = static_cast<Index>(narrow.size()) * width < kWorthThreads;
  Team team(small ? 1 : threads);
  for_units(team, samples, [&](Index sample, int) {
    const Index first = ends[sample], count = ends[sample + 1] - first;
    kernels().row_dots(arrays, biases, narrow.data() + first, count, inputs + sample * width,
                       outputs + first);
  });
}

}  // namespace

void bind_row_products(nb::module_& m) {
  m.def("row_products", &row_products, nb::arg("x").noconvert(), nb::arg("weight").noconvert(),
        nb::arg("bias").noconvert().none(), nb::arg("offsets").noconvert(),
        nb::arg("rows").noconvert(), nb::arg("out").noconvert(), "threads"_a = 1);
}

}  // namespace mh
