#include "client/envelope.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "wire/codec.h"

namespace mh::client {

using wire::Encoding;

namespace {

std::size_t kept_of(const Compression& compression, std::size_t n) {
  if (compression.encoding != Encoding::kTopK || n == 0) return 0;
  const double wanted = std::ceil(compression.keep * static_cast<double>(n));
  return std::min(n, static_cast<std::size_t>(std::max(1.0, wanted)));
}

}  // namespace

void Envelope::address(Request& request, wire::Kind kind, const Address& to,
                       std::uint64_t sequence) const {
  request.header.kind = static_cast<std::uint8_t>(kind);
  request.header.chunk = to.chunk;
  request.header.lease = to.lease;
  request.header.client = client_;
  request.header.sequence = sequence;
}

void Envelope::address_update(Request& request, wire::Kind kind, const Address& to,
                              std::uint64_t sequence, const Update& update,
                              std::uint64_t seen) const {
  address(request, kind, to, sequence);
  request.header.rate = update.rate;
  request.header.steps = update.steps;
  request.header.seen = seen;
}

void Envelope::attach(Request& request, const float* values, std::size_t n, float* sent,
                      const Compression& compression) const {
  const Encoding encoding = compression.encoding;
  if (encoding == Encoding::kFloat32) {
    if (sent && sent != values && n > 0) std::memmove(sent, values, n * sizeof(float));
    if (refer_to_own_memory(request, values, n * sizeof(float))) return;
    return request.add_part(values, n * sizeof(float));
  }
  const std::size_t keep = kept_of(compression, n);
  std::uint8_t* encoded = request.room_to_encode(wire::encoded_bytes(encoding, n, keep));
  const std::size_t bytes = wire::encode(encoding, values, n, keep, encoded);
  request.header.flags = wire::with_encoding(request.header.flags, encoding);
  if (encoding == Encoding::kTopK) {
    request.header.count = static_cast<std::uint32_t>(wire::kept_entries(bytes));
  }
  request.add_part(encoded, bytes);
  if (sent) wire::decode(encoding, encoded, bytes, n, sent);
}

void Envelope::attach_both(Request& request, const float* first, std::size_t first_floats,
                           const float* second, std::size_t second_floats,
                           Encoding encoding) const {
  const std::size_t floats = first_floats + second_floats;
  if (encoding != Encoding::kFloat32) {
    request.header.flags = wire::with_encoding(request.header.flags, encoding);
    std::uint8_t* encoded = request.room_to_encode(wire::encoded_bytes(encoding, floats));
    const std::size_t bytes = wire::encode(encoding, first, first_floats, 0, encoded);
    wire::encode(encoding, second, second_floats, 0, encoded + bytes);
    return request.add_part(encoded, wire::encoded_bytes(encoding, floats));
  }
  if (second == first + first_floats &&
      refer_to_own_memory(request, first, floats * sizeof(float))) {
    return;
  }
  request.add_part(first, first_floats * sizeof(float));
  request.add_part(second, second_floats * sizeof(float));
}

// True if the payload lies in memory that the server sees too: then only its place travels.
bool Envelope::refer_to_own_memory(Request& request, const void* payload,
                                   std::size_t bytes) const {
  if (!own_.data || bytes == 0) return false;
  const auto place =
      reinterpret_cast<std::uintptr_t>(payload) - reinterpret_cast<std::uintptr_t>(own_.data);
  if (place >= own_.bytes || bytes > own_.bytes - place || place % sizeof(float) != 0) return false;
  request.header.flags |= wire::kByReference;
  request.header.place = place;
  request.header.payload_bytes = static_cast<std::uint32_t>(bytes);
  return true;
}

}  // namespace mh::client
