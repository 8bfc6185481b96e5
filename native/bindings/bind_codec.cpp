// The encodings as Python sees them, for tests and for sizing what travels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "wire/codec.h"
#include "wire/encoding_names.h"

using namespace nanobind::literals;

namespace mh {
namespace {

nb::bytes encode(const std::string& encoding, const ConstFloats& values, std::size_t count) {
  if (count > values.size()) {
    throw std::invalid_argument("encode was asked to keep " + std::to_string(count) + " of " +
                                std::to_string(values.size()) + " values.");
  }
  const wire::Encoding how = wire::encoding_named(encoding);
  std::vector<std::uint8_t> payload(wire::encoded_bytes(how, values.size(), count));
  const std::size_t bytes =
      wire::encode(how, values.data(), values.size(), count, payload.data());
  return nb::bytes(payload.data(), bytes);
}

const std::uint8_t* bytes_of(const nb::bytes& payload) {
  return reinterpret_cast<const std::uint8_t*>(payload.c_str());
}

// Values [first, first + len(out)) of a payload that holds n of them.
void decode(const std::string& encoding, const nb::bytes& payload, std::size_t n, const Floats& out,
            std::size_t first) {
  const wire::Encoding how = wire::encoding_named(encoding);
  if (first > n || out.size() > n - first) {
    throw std::invalid_argument("decode was asked for " + std::to_string(out.size()) +
                                " values from " + std::to_string(first) + " on; there are " +
                                std::to_string(n) + ".");
  }
  if (!wire::well_formed(how, bytes_of(payload), payload.size(), n)) {
    throw std::invalid_argument("The payload of " + std::to_string(payload.size()) +
                                " bytes is not " + std::to_string(n) + " values in " + encoding +
                                ".");
  }
  wire::decode_range(how, bytes_of(payload), payload.size(), n, first, out.size(), out.data());
}

bool finite(const std::string& encoding, const nb::bytes& payload, std::size_t n) {
  const wire::Encoding how = wire::encoding_named(encoding);
  return wire::well_formed(how, bytes_of(payload), payload.size(), n) &&
         wire::finite(how, bytes_of(payload), payload.size(), n);
}

}  // namespace

void bind_codec(nb::module_& m) {
  m.def("encode", &encode, "encoding"_a, nb::arg("values").noconvert(), "count"_a = 0);
  m.def("decode", &decode, "encoding"_a, "payload"_a, "n"_a, nb::arg("out").noconvert(),
        "first"_a = 0);
  m.def("finite", &finite, "encoding"_a, "payload"_a, "n"_a);
  m.def(
      "encoded_bytes",
      [](const std::string& encoding, std::size_t n, std::size_t count) {
        return wire::encoded_bytes(wire::encoding_named(encoding), n, count);
      },
      "encoding"_a, "n"_a, "count"_a = 0);
}

}  // namespace mh
