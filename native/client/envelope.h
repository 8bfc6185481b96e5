// Addresses requests and attaches their payloads: by reference, in place or encoded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "client/request.h"
#include "wire/frame.h"

namespace mh::client {

struct Memory {
  const std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
};

// What every form of update says of itself.
struct Update {
  float rate;
  std::uint32_t steps;
  std::uint64_t sequence;  // of every chunk of a call
  std::uint64_t rise = 0;  // by which each chunk's is above the one before, where chunks repeat
};

// A chunk, and the lease under which it is believed to be held; 0: no opinion.
struct Address {
  std::uint32_t chunk;
  std::uint32_t lease;
};

struct Compression {
  wire::Encoding encoding = wire::Encoding::kFloat32;
  double keep = 0.0;  // the share of values that top-k keeps
};

class Envelope {
 public:
  // `own` is shared with the server: payloads inside it go by reference.
  Envelope(std::uint64_t client, const Memory& own) : client_(client), own_(own) {}

  void address(Request& request, wire::Kind kind, const Address& to, std::uint64_t sequence) const;
  void address_update(Request& request, wire::Kind kind, const Address& to,
                      std::uint64_t sequence, const Update& update, std::uint64_t seen) const;

  // `sent`, if not null, receives the values as the server will decode them.
  void attach(Request& request, const float* values, std::size_t n, float* sent,
              const Compression& compression) const;
  // One array behind another, as float32 or bfloat16.
  void attach_both(Request& request, const float* first, std::size_t first_floats,
                   const float* second, std::size_t second_floats, wire::Encoding encoding) const;

 private:
  bool refer_to_own_memory(Request& request, const void* payload, std::size_t bytes) const;

  const std::uint64_t client_;
  const Memory own_;
};

}  // namespace mh::client
