// Payloads where other servers of the same machine can read them: a copy applies an update straight
// from its primary's memory, and only a few bytes travel.
//
// Two servers that don't know whether they are on one machine find out: the primary says where its
// memory would be, and the copy looks whether it finds there the number that it was told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "server/shared_memory.h"
#include "wire/frame.h"

namespace mh::server {

// Below this a payload is quicker sent than shown.
constexpr std::size_t kLeastShared = std::size_t{16} << 10;

class Arena {
 public:
  // Takes address space only; memory is used as it is touched.
  explicit Arena(std::size_t bytes);

  // A fresh piece that is never given back, or null where there is no more room.
  std::uint8_t* carve(std::size_t bytes);
  bool contains(const std::uint8_t* data) const {
    return data >= memory_.data() && data < memory_.data() + memory_.bytes();
  }
  std::uint64_t offset_of(const std::uint8_t* data) const {
    return static_cast<std::uint64_t>(data - memory_.data());
  }

  // The frame that tells another server where to look.
  wire::Header introduction() const;

 private:
  SharedMemory memory_;
  std::size_t used_;
  std::uint64_t secret_;
};

// The memory that an introduction speaks of, if it is on this machine.
std::optional<ClientMemory> find_arena(const wire::Header& introduction);

}  // namespace mh::server
