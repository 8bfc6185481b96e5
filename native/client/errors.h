// How a call to a server can fail; the bindings turn each into a Python exception.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace mh::client {

// The connection is closed, reset or speaks nonsense: it can't be used again.
struct ConnectionLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Nothing arrived and nothing could be sent for too long: it can't be used again.
struct TimedOut : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The server answered No, with its sentence. Other requests of the call were carried out.
struct Refused : std::runtime_error {
  Refused(std::uint32_t refusal, std::uint32_t of_chunk, const std::string& sentence)
      : std::runtime_error(sentence), code(refusal), chunk(of_chunk) {}
  std::uint32_t code;  // a wire::Refusal
  std::uint32_t chunk;
};

}  // namespace mh::client
