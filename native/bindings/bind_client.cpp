// Links to servers as Python sees them: arguments checked, then the call without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bindings/bindings.h"
#include "bindings/python_link.h"

using namespace nanobind::literals;

namespace mh {
namespace {

using client::Link;
using wire::Encoding;

void push(PythonLink& self, const Numbers& chunks, const ConstIntegers& starts,
          const ConstIntegers& counts, const ConstFloats& values, double rate, std::uint32_t steps,
          std::uint64_t sequence, const Counters& versions,
          const std::optional<Numbers>& leases, const std::optional<Outcomes>& outcomes,
          const std::string& encoding, double keep, const std::optional<Floats>& sent,
          bool rising) {
  const ChunkList list(chunks, starts, counts, {versions, leases, outcomes}, values.size());
  const client::Compression compression = compression_of(encoding, keep);
  const client::Update update{static_cast<float>(rate), steps, sequence, rising};
  const float* data = values.data();
  float* echo = beside(sent, values.size());
  self.call([&](Link& link) { link.push(list, data, echo, update, compression); });
}

void push_pull(PythonLink& self, const Numbers& chunks, const ConstIntegers& starts,
               const ConstIntegers& counts, const ConstFloats& values, const Floats& out,
               double rate, std::uint32_t steps, std::uint64_t sequence, const Counters& versions,
               const std::optional<Numbers>& leases, const std::optional<Outcomes>& outcomes,
               const std::string& encoding, double keep, const std::optional<Floats>& sent,
               bool rising) {
  const ChunkList list(chunks, starts, counts, {versions, leases, outcomes}, values.size());
  const client::Compression compression = compression_of(encoding, keep);
  const client::Update update{static_cast<float>(rate), steps, sequence, rising};
  const float* data = values.data();
  float *echo = beside(sent, values.size()), *to = beside(out, values.size());
  self.call([&](Link& link) { link.push_pull(list, data, echo, to, update, compression); });
}

void pull(PythonLink& self, const Numbers& chunks, const ConstIntegers& starts,
          const ConstIntegers& counts, const Floats& out, const Counters& versions,
          const std::optional<Numbers>& leases, const std::optional<Outcomes>& outcomes,
          const std::string& encoding) {
  const ChunkList list(chunks, starts, counts, {versions, leases, outcomes}, out.size());
  const Encoding how = values_encoding(encoding);
  float* to = out.data();
  self.call([&](Link& link) { link.pull(list, to, how); });
}

std::uint64_t push_factors(PythonLink& self, std::uint32_t chunk, const ConstMatrix& a,
                           const ConstMatrix& d, double rate, std::uint32_t steps,
                           std::uint64_t sequence, std::uint64_t seen, std::uint32_t lease,
                           const std::string& encoding) {
  if (a.shape(0) != d.shape(0)) {
    refuse("The factors have shapes " + shape_text(a) + " and " + shape_text(d) +
           "; expected as many samples in both.");
  }
  require_payload(a.size() + d.size());
  const client::Factors factors{static_cast<std::uint32_t>(a.shape(0)), a.data(), a.size(),
                                d.data(), d.size()};
  const client::Update update{static_cast<float>(rate), steps, sequence};
  const Encoding how = factors_encoding(encoding);
  return self.call(
      [&](Link& link) { return link.push_factors({chunk, lease}, factors, update, seen, how); });
}

void push_rows(PythonLink& self, const Numbers& chunks, const ConstIntegers& row_starts,
               const ConstIntegers& row_counts, const Numbers& rows, const ConstFloats& values,
               const ConstIntegers& value_starts, const ConstIntegers& widths, double rate,
               std::uint32_t steps, std::uint64_t sequence, const Counters& versions,
               const std::optional<Numbers>& leases, const std::optional<Outcomes>& outcomes) {
  const ChunkList list(chunks, row_starts, row_counts, {versions, leases, outcomes}, rows.size());
  require_row_values(list, value_starts, widths, values.size());
  const std::vector<std::uint32_t> numbers = numbers_of(rows, "rows");
  const client::Rows sparse{numbers.data(), values.data(), value_starts.data(), widths.data()};
  const client::Update update{static_cast<float>(rate), steps, sequence};
  self.call([&](Link& link) { link.push_rows(list, sparse, update); });
}

void pull_rows(PythonLink& self, const Numbers& chunks, const ConstIntegers& starts,
               const ConstIntegers& counts, const Floats& out, const ConstIntegers& widths,
               const ConstIntegers& row_starts, const Flags& changed, const Counters& eras,
               const Counters& versions, const std::optional<Numbers>& leases,
               const std::optional<Outcomes>& outcomes, const std::string& encoding) {
  const ChunkList list(chunks, starts, counts, {versions, leases, outcomes}, out.size());
  require_row_flags(list, widths, row_starts, changed.size(), eras.size());
  const Encoding how = values_encoding(encoding);
  const client::KnownRows known{eras.data(), widths.data(), row_starts.data(), changed.data()};
  float* to = out.data();
  self.call([&](Link& link) { link.pull_rows(list, known, to, how); });
}

void set(PythonLink& self, std::uint32_t chunk, std::uint32_t array, const ConstFloats& values,
         std::uint64_t sequence, std::uint32_t updates, std::uint32_t lease) {
  require_payload(values.size());
  const float* data = values.data();
  const std::size_t floats = values.size();
  self.call([&](Link& link) { link.set({chunk, lease}, array, data, floats, sequence, updates); });
}

nb::tuple get(PythonLink& self, std::uint32_t chunk, std::uint32_t array, const Floats& out,
                  std::uint32_t lease) {
  require_payload(out.size());
  float* to = out.data();
  const std::size_t floats = out.size();
  const client::ChunkState state =
      self.call([&](Link& link) { return link.get({chunk, lease}, array, to, floats); });
  return nb::make_tuple(state.version, state.updates);
}

void places(PythonLink& self, const Numbers& chunks, const ConstIntegers& weights,
            const ConstIntegers& versions) {
  const std::vector<std::uint32_t> numbers = numbers_of(chunks, "chunks");
  if (weights.size() != numbers.size() || versions.size() != numbers.size()) {
    refuse("places got " + text(numbers.size()) + " chunks, " + text(weights.size()) +
           " weights and " + text(versions.size()) + " versions; expected as many of each.");
  }
  const std::int64_t *weight_at = weights.data(), *version_at = versions.data();
  self.call([&](Link& link) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      link.place(numbers[i], static_cast<std::uint64_t>(weight_at[i]),
                 static_cast<std::uint64_t>(version_at[i]));
    }
  });
}

void bind_errors(nb::module_& m) {
  nb::object refused = nb::steal(PyErr_NewExceptionWithDoc(
      "manyhands._native.Refused",
      "The server answered No: its sentence, and `code` (a Refusal) and `chunk`.",
      PyExc_RuntimeError, nullptr));
  m.attr("Refused") = refused;
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void* type) {
        try {
          std::rethrow_exception(thrown);
        } catch (const client::Refused& e) {
          nb::object error = nb::handle(static_cast<PyObject*>(type))(e.what());
          error.attr("code") = e.code;
          error.attr("chunk") = e.chunk;
          PyErr_SetObject(static_cast<PyObject*>(type), error.ptr());
        } catch (const client::ConnectionLost& e) {
          PyErr_SetString(PyExc_ConnectionError, e.what());
        } catch (const client::TimedOut& e) {
          PyErr_SetString(PyExc_TimeoutError, e.what());
        }
      },
      refused.ptr());
}

}  // namespace

void bind_client(nb::module_& m) {
  bind_errors(m);
  const auto chunks = nb::arg("chunks").noconvert(), starts = nb::arg("starts").noconvert(),
             counts = nb::arg("counts").noconvert(), versions = nb::arg("versions").noconvert(),
             values = nb::arg("values").noconvert(), out = nb::arg("out").noconvert();
  const auto leases = nb::arg("leases").noconvert().none() = nb::none(),
             outcomes = nb::arg("outcomes").noconvert().none() = nb::none(),
             sent = nb::arg("sent").noconvert().none() = nb::none();
  nb::class_<PythonLink>(m, "Link")
      .def(nb::init<int, std::uint64_t, std::size_t, double, const std::optional<Bytes>&,
                    const std::optional<Bytes>&>(),
           "fd"_a, nb::kw_only(), "client"_a, "window"_a = 16, "timeout_s"_a = 30.0,
           nb::arg("own").noconvert().none() = nb::none(),
           nb::arg("values").noconvert().none() = nb::none())
      .def("push", &push, chunks, starts, counts, values, nb::kw_only(), "rate"_a, "steps"_a,
           "sequence"_a, versions, leases, outcomes, "encoding"_a = "float32", "keep"_a = 0.01,
           sent, "rising"_a = false)
      .def("pull", &pull, chunks, starts, counts, out, nb::kw_only(), versions, leases,
           outcomes, "encoding"_a = "float32")
      .def("push_pull", &push_pull, chunks, starts, counts, values, out, nb::kw_only(), "rate"_a,
           "steps"_a, "sequence"_a, versions, leases, outcomes, "encoding"_a = "float32",
           "keep"_a = 0.01, sent, "rising"_a = false)
      .def("push_factors", &push_factors, "chunk"_a, nb::arg("a").noconvert(),
           nb::arg("d").noconvert(), nb::kw_only(), "rate"_a, "steps"_a, "sequence"_a, "seen"_a,
           "lease"_a = 0, "encoding"_a = "float32")
      .def("push_rows", &push_rows, chunks, nb::arg("row_starts").noconvert(),
           nb::arg("row_counts").noconvert(), nb::arg("rows").noconvert(), values, nb::kw_only(),
           nb::arg("value_starts").noconvert(), nb::arg("widths").noconvert(), "rate"_a, "steps"_a,
           "sequence"_a, versions, leases, outcomes)
      .def("pull_rows", &pull_rows, chunks, starts, counts, out, nb::kw_only(),
           nb::arg("widths").noconvert(), nb::arg("row_starts").noconvert(),
           nb::arg("changed").noconvert(), nb::arg("eras").noconvert(), versions, leases, outcomes,
           "encoding"_a = "float32")
      .def("set", &set, "chunk"_a, "array"_a, values, nb::kw_only(), "sequence"_a,
           "updates"_a = 0, "lease"_a = 0)
      .def("get", &get, "chunk"_a, "array"_a, out, nb::kw_only(), "lease"_a = 0)
      .def("places", &places, chunks, nb::arg("weights_offsets").noconvert(),
           nb::arg("version_offsets").noconvert())
      .def("close", &PythonLink::close)
      .def_prop_ro("waited_s", &PythonLink::waited_s)
      .def_prop_ro("pushed_bytes", [](PythonLink& self) { return self.traffic().pushed_bytes; })
      .def_prop_ro("pulled_bytes", [](PythonLink& self) { return self.traffic().pulled_bytes; });
}

}  // namespace mh
