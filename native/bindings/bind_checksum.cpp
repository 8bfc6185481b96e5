// The checksum as Python sees it: of anything that shows its bytes.
#include <nanobind/nanobind.h>

#include <cstdint>

#include "bindings/bindings.h"
#include "checksum.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace mh {
namespace {

class Bytes {
 public:
  explicit Bytes(const nb::handle& object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~Bytes() { PyBuffer_Release(&view_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  const std::uint8_t* data() const { return static_cast<const std::uint8_t*>(view_.buf); }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_;
};

std::uint32_t checksum_of(const nb::object& data, std::uint32_t before) {
  const Bytes bytes(data);
  const nb::gil_scoped_release release;
  return crc32c(bytes.data(), bytes.size(), before);
}

}  // namespace

void bind_checksum(nb::module_& m) { m.def("crc32c", &checksum_of, "data"_a, "before"_a = 0); }

}  // namespace mh
