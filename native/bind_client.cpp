// Links to servers as Python sees them: arguments checked, then the call without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "bindings.h"
#include "client/link.h"
#include "ranges.h"
#include "wire/encoding_names.h"

using namespace nanobind::literals;

namespace mh {
namespace {

using client::Link;
using wire::Encoding;

using Numbers = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

// Signals are handled in the main thread only; the others need not take the GIL to find none.
void check_signals() {
  if (::syscall(SYS_gettid) != ::getpid()) return;
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// Chunk and row numbers from an array of uint32 or int64.
std::vector<std::uint32_t> numbers_of(const Numbers& array, const char* what) {
  const bool narrow = array.dtype() == nb::dtype<std::uint32_t>();
  if (!narrow && array.dtype() != nb::dtype<std::int64_t>()) {
    throw nb::type_error((std::string(what) + " must be an array of uint32 or int64.").c_str());
  }
  std::vector<std::uint32_t> numbers(array.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::int64_t number = narrow ? static_cast<const std::uint32_t*>(array.data())[i]
                                       : static_cast<const std::int64_t*>(array.data())[i];
    require(number >= 0 && number <= std::numeric_limits<std::uint32_t>::max(),
            std::string(what) + " has the number " + std::to_string(number) +
                "; expected 0 to 2^32 - 1.");
    numbers[i] = static_cast<std::uint32_t>(number);
  }
  return numbers;
}

Encoding values_encoding(const std::string& name) {
  const Encoding encoding = wire::encoding_named(name);
  require(encoding != Encoding::kTopK, "Values are pulled as float32, bfloat16 or int8, not topk.");
  return encoding;
}

Encoding factors_encoding(const std::string& name) {
  const Encoding encoding = wire::encoding_named(name);
  require(encoding == Encoding::kFloat32 || encoding == Encoding::kBfloat16,
          "Factors travel as float32 or bfloat16, not " + name + ".");
  return encoding;
}

void require_payload(std::size_t floats) {
  require(floats < (std::size_t{1} << 29), "A payload has " + std::to_string(floats) +
                                               " floats; expected less than 2^29.");
}

// A call's chunks, with the numbers that they refer to.
struct ChunkList {
  ChunkList(const Numbers& chunks, const ConstIntegers& starts, const ConstIntegers& counts,
            const Counters& versions, std::size_t floats)
      : numbers(numbers_of(chunks, "chunks")) {
    const Ranges ranges = ranges_within(starts, counts, floats);
    require(ranges.size == numbers.size() && versions.size() == numbers.size(),
            "There are " + std::to_string(numbers.size()) + " chunks, " +
                std::to_string(ranges.size) + " ranges and " + std::to_string(versions.size()) +
                " versions; expected as many of each.");
    for (std::size_t i = 0; i < ranges.size; ++i) {
      require_payload(static_cast<std::size_t>(ranges.counts[i]));
    }
    chunks_ = {ranges.size, numbers.data(), ranges.starts, ranges.counts, versions.data()};
  }
  operator const client::Chunks&() const { return chunks_; }

  std::vector<std::uint32_t> numbers;
  client::Chunks chunks_;
};

// The link, the arrays it reads, and whether a call is running (which only happens with the GIL
// held at its start and its end, so that no two threads can be in one).
class PyLink {
 public:
  PyLink(int fd, std::uint64_t client, std::size_t window, double timeout_s,
         const std::optional<Bytes>& own, const std::optional<Bytes>& values)
      : own_(own), values_(values) {
    require(window >= 1, "The window is 0; expected at least 1.");
    require(timeout_s > 0.0 && std::isfinite(timeout_s),
            "The timeout is " + std::to_string(timeout_s) + " s; expected more than 0.");
    int type = 0;
    socklen_t size = sizeof type;
    require(::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM,
            "File descriptor " + std::to_string(fd) + " is not a connected stream socket.");
    link_.emplace(fd, client::LinkSettings{client, window, timeout_s, memory_of(own),
                                           memory_of(values), &check_signals});
  }

  // Runs `body(link)` without the GIL.
  template <typename Body>
  auto call(const Body& body) {
    const Busy busy(*this);
    const nb::gil_scoped_release release;
    return body(*link_);
  }

  void close() {
    closed_ = true;
    if (!link_) return;
    if (busy_) {
      link_->hang_up();  // the call ends soon, and closes
    } else {
      remember();
      link_.reset();
    }
  }

  Link& link() {
    if (!link_ || closed_) throw client::ConnectionLost("This link was closed.");
    return *link_;
  }
  double waited_s() const { return link_ ? link_->waited_s() : waited_s_; }
  client::Traffic traffic() const { return link_ ? link_->traffic() : traffic_; }

 private:
  struct Busy {
    explicit Busy(PyLink& l) : owner(l) {
      owner.link();
      if (owner.busy_) throw std::runtime_error("Another thread is using this link.");
      owner.busy_ = true;
    }
    ~Busy() {
      owner.busy_ = false;
      if (owner.closed_) owner.close();
    }
    PyLink& owner;
  };

  static client::Memory memory_of(const std::optional<Bytes>& array) {
    if (!array) return {};
    return {array->data(), array->size()};
  }
  void remember() {
    waited_s_ = link_->waited_s();
    traffic_ = link_->traffic();
  }

  std::optional<Bytes> own_, values_;  // kept alive
  std::optional<Link> link_;
  bool busy_ = false, closed_ = false;
  double waited_s_ = 0.0;
  client::Traffic traffic_;
};

float* data_of(const std::optional<Floats>& array, std::size_t floats) {
  if (!array) return nullptr;
  require(array->size() == floats, "An array has " + std::to_string(array->size()) +
                                       " floats; expected the values' " + std::to_string(floats) +
                                       ".");
  return array->data();
}

client::Compression compression_of(const std::string& encoding, double keep) {
  require(keep > 0.0 && keep <= 1.0,
          "The share to keep is " + std::to_string(keep) + "; expected more than 0, at most 1.");
  return {wire::encoding_named(encoding), keep};
}

void push(PyLink& self, const Numbers& chunks, const ConstIntegers& starts,
          const ConstIntegers& counts, const ConstFloats& values, double rate, std::uint32_t steps,
          std::uint64_t first_sequence, const Counters& versions, const std::string& encoding,
          double keep, const std::optional<Floats>& sent) {
  const ChunkList list(chunks, starts, counts, versions, values.size());
  const client::Compression compression = compression_of(encoding, keep);
  const client::Update update{static_cast<float>(rate), steps, first_sequence};
  const float* data = values.data();
  float* echo = data_of(sent, values.size());
  self.call([&](Link& link) { link.push(list, data, echo, update, compression); });
}

void push_pull(PyLink& self, const Numbers& chunks, const ConstIntegers& starts,
               const ConstIntegers& counts, const ConstFloats& values, const Floats& out,
               double rate, std::uint32_t steps, std::uint64_t first_sequence,
               const Counters& versions, const std::string& encoding, double keep,
               const std::optional<Floats>& sent) {
  const ChunkList list(chunks, starts, counts, versions, values.size());
  const client::Compression compression = compression_of(encoding, keep);
  const client::Update update{static_cast<float>(rate), steps, first_sequence};
  const float* data = values.data();
  float *echo = data_of(sent, values.size()), *to = data_of(out, values.size());
  self.call([&](Link& link) { link.push_pull(list, data, echo, to, update, compression); });
}

void pull(PyLink& self, const Numbers& chunks, const ConstIntegers& starts,
          const ConstIntegers& counts, const Floats& out, const Counters& versions,
          const std::string& encoding) {
  const ChunkList list(chunks, starts, counts, versions, out.size());
  const Encoding how = values_encoding(encoding);
  float* to = out.data();
  self.call([&](Link& link) { link.pull(list, to, how); });
}

std::uint64_t push_factors(PyLink& self, std::uint32_t chunk, const ConstMatrix& a,
                           const ConstMatrix& d, double rate, std::uint32_t steps,
                           std::uint64_t sequence, std::uint64_t seen,
                           const std::string& encoding) {
  require(a.shape(0) == d.shape(0), "The factors have shapes " + shape_text(a) + " and " +
                                        shape_text(d) + "; expected as many samples in both.");
  require_payload(a.size() + d.size());
  const client::Factors factors{static_cast<std::uint32_t>(a.shape(0)), a.data(), a.size(),
                                d.data(), d.size()};
  const client::Update update{static_cast<float>(rate), steps, sequence};
  const Encoding how = factors_encoding(encoding);
  return self.call(
      [&](Link& link) { return link.push_factors(chunk, factors, update, seen, how); });
}

std::uint64_t push_rows(PyLink& self, std::uint32_t chunk, const Numbers& rows,
                        const ConstMatrix& values, double rate, std::uint32_t steps,
                        std::uint64_t sequence, std::uint64_t seen) {
  require(rows.size() == values.shape(0), "There are " + std::to_string(rows.size()) +
                                              " row numbers and values of shape " +
                                              shape_text(values) + "; expected as many.");
  require_payload(values.size() + rows.size());
  const std::vector<std::uint32_t> numbers = numbers_of(rows, "rows");
  const client::Rows sparse{static_cast<std::uint32_t>(numbers.size()), numbers.data(),
                            values.data(), values.size()};
  const client::Update update{static_cast<float>(rate), steps, sequence};
  return self.call([&](Link& link) { return link.push_rows(chunk, sparse, update, seen); });
}

void set(PyLink& self, std::uint32_t chunk, std::uint32_t array, const ConstFloats& values) {
  require_payload(values.size());
  const float* data = values.data();
  const std::size_t floats = values.size();
  self.call([&](Link& link) { link.set(chunk, array, data, floats); });
}

std::uint64_t get(PyLink& self, std::uint32_t chunk, std::uint32_t array, const Floats& out) {
  require_payload(out.size());
  float* to = out.data();
  const std::size_t floats = out.size();
  return self.call([&](Link& link) { return link.get(chunk, array, to, floats); });
}

void places(PyLink& self, const Numbers& chunks, const ConstIntegers& weights,
            const ConstIntegers& versions) {
  const std::vector<std::uint32_t> numbers = numbers_of(chunks, "chunks");
  require(weights.size() == numbers.size() && versions.size() == numbers.size(),
          "places got " + std::to_string(numbers.size()) + " chunks, " +
              std::to_string(weights.size()) + " weights and " + std::to_string(versions.size()) +
              " versions; expected as many of each.");
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    self.link().place(numbers[i], static_cast<std::uint64_t>(weights.data()[i]),
                      static_cast<std::uint64_t>(versions.data()[i]));
  }
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
  nb::class_<PyLink>(m, "Link")
      .def(nb::init<int, std::uint64_t, std::size_t, double, const std::optional<Bytes>&,
                    const std::optional<Bytes>&>(),
           "fd"_a, nb::kw_only(), "client"_a, "window"_a = 16, "timeout_s"_a = 30.0,
           nb::arg("own").noconvert().none() = nb::none(),
           nb::arg("values").noconvert().none() = nb::none())
      .def("push", &push, chunks, starts, counts, values, nb::kw_only(), "rate"_a, "steps"_a,
           "first_sequence"_a, versions, "encoding"_a = "float32", "keep"_a = 0.01,
           nb::arg("sent").noconvert().none() = nb::none())
      .def("pull", &pull, chunks, starts, counts, out, nb::kw_only(), versions,
           "encoding"_a = "float32")
      .def("push_pull", &push_pull, chunks, starts, counts, values, out, nb::kw_only(), "rate"_a,
           "steps"_a, "first_sequence"_a, versions, "encoding"_a = "float32", "keep"_a = 0.01,
           nb::arg("sent").noconvert().none() = nb::none())
      .def("push_factors", &push_factors, "chunk"_a, nb::arg("a").noconvert(),
           nb::arg("d").noconvert(), nb::kw_only(), "rate"_a, "steps"_a, "sequence"_a, "seen"_a,
           "encoding"_a = "float32")
      .def("push_rows", &push_rows, "chunk"_a, nb::arg("rows").noconvert(), values, nb::kw_only(),
           "rate"_a, "steps"_a, "sequence"_a, "seen"_a)
      .def("set", &set, "chunk"_a, "array"_a, values)
      .def("get", &get, "chunk"_a, "array"_a, out)
      .def("places", &places, chunks, nb::arg("weights_offsets").noconvert(),
           nb::arg("version_offsets").noconvert())
      .def("close", &PyLink::close)
      .def_prop_rw(
          "lease", [](PyLink& self) { return self.link().lease(); },
          [](PyLink& self, std::uint32_t lease) { self.link().set_lease(lease); })
      .def_prop_ro("waited_s", &PyLink::waited_s)
      .def_prop_ro("pushed_bytes", [](PyLink& self) { return self.traffic().pushed_bytes; })
      .def_prop_ro("pulled_bytes", [](PyLink& self) { return self.traffic().pulled_bytes; });
}

}  // namespace mh
