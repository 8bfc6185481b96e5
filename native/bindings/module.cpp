// The Python module: what a caller may ask about the machine, and the parts bound elsewhere.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "kernels/dispatch.h"
#include "system.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace mh {
namespace {

std::vector<std::string> simd_choices() {
  std::vector<std::string> names;
  for (const KernelTable* table : available_kernels()) names.emplace_back(table->name);
  return names;
}

std::int64_t fetch_add_at(const Counters& counters, std::int64_t index, std::int64_t amount) {
  const auto size = static_cast<std::int64_t>(counters.shape(0));
  if (index < 0 || index >= size) {
    throw nb::index_error(("The counter's index is " + std::to_string(index) + "; expected 0 to " +
                           std::to_string(size - 1) + ".")
                              .c_str());
  }
  return fetch_add(counters.data() + index, amount);
}

}  // namespace
}  // namespace mh

NB_MODULE(_native, m) {
  m.doc() = "Kernels of Manyhands: update rules and the compiled training step.";
  m.def("simd", [] { return std::string(mh::kernels().name); });
  m.def("simd_choices", &mh::simd_choices);
  m.def("use_simd", &mh::use_kernels, "name"_a);
  m.def("flush_denormals", &mh::flush_denormals);
  m.def("keep_freed_memory", &mh::keep_freed_memory);
  m.def("fetch_add", &mh::fetch_add_at, nb::arg("counters").noconvert(), "index"_a, "amount"_a);
  mh::bind_updates(m);
  mh::bind_plan(m);
  mh::bind_row_products(m);
  mh::bind_sparse_trainer(m);
  mh::bind_client(m);
  mh::bind_server(m);
  mh::bind_codec(m);
  mh::bind_flat(m);
  mh::bind_checksum(m);
  mh::bind_lsh(m);
  mh::bind_label_lines(m);
  mh::bind_shared_mapping(m);
}
