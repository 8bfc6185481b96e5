// The flat walks as Python sees them: checks and ranges, then one kernel call for each range.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <optional>

#include "bindings/bindings.h"
#include "kernels/dispatch.h"
#include "bindings/ranges.h"

using namespace nanobind::literals;

namespace mh {
namespace {

template <typename... Arrays>
void require_equal_sizes(std::size_t size, const Arrays&... arrays) {
  for (const std::size_t other : {arrays.size()...}) {
    if (other != size) {
      throw std::invalid_argument("The flat arrays have " + std::to_string(size) + " and " +
                                  std::to_string(other) + " floats; expected as many in each.");
    }
  }
}

// Calls `walk(start, count)` for every range, without the GIL.
template <typename Walk>
void walk_ranges(const Ranges& ranges, const Walk& walk) {
  const nb::gil_scoped_release release;
  for (std::size_t i = 0; i < ranges.size; ++i) {
    walk(static_cast<Index>(ranges.starts[i]), static_cast<Index>(ranges.counts[i]));
  }
}

void add_and_clear(const Floats& accumulated, const Floats& outgoing) {
  require_equal_sizes(accumulated.size(), outgoing);
  const auto n = static_cast<Index>(accumulated.size());
  float *from = accumulated.data(), *to = outgoing.data();
  const nb::gil_scoped_release release;
  kernels().add_and_clear(n, from, to);
}

void take(const Floats& outgoing, const Floats& staged, const ConstIntegers& starts,
          const ConstIntegers& counts) {
  require_equal_sizes(outgoing.size(), staged);
  float *from = outgoing.data(), *to = staged.data();
  walk_ranges(ranges_within(starts, counts, outgoing.size()),
              [=](Index start, Index n) { kernels().take(n, from + start, to + start); });
}

void difference(const ConstFloats& base, const ConstFloats& local, const Floats& out,
                const ConstIntegers& starts, const ConstIntegers& counts) {
  require_equal_sizes(base.size(), local, out);
  const float *from = base.data(), *minus = local.data();
  float* to = out.data();
  walk_ranges(ranges_within(starts, counts, base.size()), [=](Index start, Index n) {
    kernels().difference(n, from + start, minus + start, to + start);
  });
}

void merge(const Floats& local, const Floats& base, const std::optional<ConstFloats>& sent,
           const ConstFloats& pulled, const ConstIntegers& starts, const ConstIntegers& counts) {
  require_equal_sizes(local.size(), base, pulled);
  if (sent) require_equal_sizes(local.size(), *sent);
  float *ours = local.data(), *known = base.data();
  const float *mine = sent ? sent->data() : nullptr, *news = pulled.data();
  walk_ranges(ranges_within(starts, counts, local.size()), [=](Index start, Index n) {
    kernels().merge(n, ours + start, known + start, mine ? mine + start : nullptr, news + start);
  });
}

}  // namespace

void bind_flat(nb::module_& m) {
  m.def("add_and_clear", &add_and_clear, nb::arg("accumulated").noconvert(),
        nb::arg("outgoing").noconvert());
  m.def("take", &take, nb::arg("outgoing").noconvert(), nb::arg("staged").noconvert(),
        nb::arg("starts").noconvert(), nb::arg("counts").noconvert());
  m.def("difference", &difference, nb::arg("base").noconvert(), nb::arg("local").noconvert(),
        nb::arg("out").noconvert(), nb::arg("starts").noconvert(), nb::arg("counts").noconvert());
  m.def("merge", &merge, nb::arg("local").noconvert(), nb::arg("base").noconvert(),
        nb::arg("sent").noconvert().none(), nb::arg("pulled").noconvert(),
        nb::arg("starts").noconvert(), nb::arg("counts").noconvert());
}

}  // namespace mh
