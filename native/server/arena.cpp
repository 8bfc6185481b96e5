#include "server/arena.h"

namespace mh::server {

std::uint8_t* Arena::carve(std::size_t bytes) {
  if (bytes > memory_.bytes() - used_) return nullptr;
  std::uint8_t* data = memory_.data() + used_;
  used_ += bytes;
  return data;
}

wire::Header Arena::introduction() const {
  wire::Header header;
  header.kind = static_cast<std::uint8_t>(wire::Kind::kShare);
  memory_.introduce(header);
  return header;
}

}  // namespace mh::server
