// One request to a server, from its preparation to its answer, and a call's list of them.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "wire/frame.h"

namespace mh::client {

constexpr int kPayloadParts = 2;

struct Request {
  wire::Header header;
  // The payload as it travels: views of the caller's arrays, or of `encoded`. None by reference.
  iovec parts[kPayloadParts];
  int part_count = 0;
  std::vector<std::uint8_t> encoded;  // kept from request to request, to reuse its memory

  float* out = nullptr;  // where values of the answer go; null: an acknowledgement is expected
  std::size_t floats = 0;
  std::size_t row_floats = 0;       // not 0: the answer may be some rows of those values alone
  std::uint8_t* changed = nullptr;  // one for each row: receives 1 where the answer brings it
  bool answered = false;

  // Forgets everything but the memory of `encoded`.
  void reset() {
    header = wire::Header{};
    part_count = 0;
    out = nullptr;
    floats = 0;
    row_floats = 0;
    changed = nullptr;
    answered = false;
  }

  void add_part(const void* data, std::size_t bytes) {
    if (bytes > 0) parts[part_count++] = {const_cast<void*>(data), bytes};
    header.payload_bytes += static_cast<std::uint32_t>(bytes);
  }

  std::uint8_t* room_to_encode(std::size_t bytes) {
    if (encoded.size() < bytes) encoded.resize(bytes);
    return encoded.data();
  }
};

// What a call wants done: requests 0 to size - 1, each prepared just before it is sent.
class Errand {
 public:
  explicit Errand(std::size_t size) : size_(size) {}
  virtual ~Errand() = default;
  std::size_t size() const { return size_; }

  virtual void prepare(std::size_t i, Request& request) = 0;
  // Request i was answered with an acknowledgement or with values, which are in place by now.
  virtual void answered(std::size_t i, const Request& request, const wire::Header& reply) = 0;
  // The server answered No to request i; `code` is a wire::Refusal.
  virtual void refused(std::size_t i, std::uint32_t code) = 0;

 private:
  std::size_t size_;
};

}  // namespace mh::client
