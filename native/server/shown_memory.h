// Memory that a server shows to another on the same machine.
//
// Two servers that don't know whether they are on one machine find out: one says where its memory
// would be, and the other looks whether it finds there the number that it was told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "server/shared_memory.h"
#include "wire/frame.h"

namespace mh::server {

class ShownMemory {
 public:
  // The first bytes that are not taken by the number.
  static constexpr std::size_t kBegin = 64;

  // Takes address space only; memory is used as it is touched.
  ShownMemory(std::size_t bytes, Writers writers);

  std::uint8_t* data() const { return memory_.data(); }
  std::size_t bytes() const { return memory_.bytes(); }
  // Writes into a frame where another server is to look.
  void introduce(wire::Header& header) const;

 private:
  SharedMemory memory_;
  std::uint64_t secret_;
};

// The memory that a frame speaks of, if it is on this machine.
std::optional<ClientMemory> find_shown(const wire::Header& introduction, Access access);

}  // namespace mh::server
