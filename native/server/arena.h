// Payloads where other servers of the same machine can read them: a copy applies an update straight
// from its primary's memory, and only a few bytes travel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "server/shown_memory.h"

namespace mh::server {

// Below this a payload is quicker sent than shown.
constexpr std::size_t kLeastShared = std::size_t{16} << 10;

class Arena {
 public:
  // Takes address space only; memory is used as it is touched.
  explicit Arena(std::size_t bytes) : memory_(bytes, Writers::kOwner) {}

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
  static constexpr std::size_t kPage = 4096;

  ShownMemory memory_;
  std::size_t used_ = kPage;
};

}  // namespace mh::server
