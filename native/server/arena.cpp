#include "server/arena.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <exception>
#include <random>
#include <string>

namespace mh::server {
namespace {

constexpr std::size_t kPage = 4096;

std::uint64_t random_number() {
  std::random_device source;
  return std::uint64_t{source()} << 32 | source();
}

}  // namespace

Arena::Arena(std::size_t bytes)
    : memory_((bytes + kPage - 1) / kPage * kPage), used_(kPage), secret_(random_number()) {
  std::memcpy(memory_.data(), &secret_, sizeof secret_);
}

std::uint8_t* Arena::carve(std::size_t bytes) {
  if (bytes > memory_.bytes() - used_) return nullptr;
  std::uint8_t* data = memory_.data() + used_;
  used_ += bytes;
  return data;
}

wire::Header Arena::introduction() const {
  wire::Header header;
  header.kind = static_cast<std::uint8_t>(wire::Kind::kShare);
  header.client = static_cast<std::uint64_t>(getpid());
  header.sequence = static_cast<std::uint64_t>(memory_.fd());
  header.seen = memory_.bytes();
  header.place = secret_;
  return header;
}

std::optional<ClientMemory> find_arena(const wire::Header& introduction) {
  const std::string path = "/proc/" + std::to_string(introduction.client) + "/fd/" +
                           std::to_string(introduction.sequence);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  std::optional<ClientMemory> found;
  try {
    found.emplace(fd, introduction.seen);
    std::uint64_t secret = 0;
    std::memcpy(&secret, found->data(), sizeof secret);
    if (secret != introduction.place) found.reset();
  } catch (const std::exception&) {
    found.reset();  // another machine's number for another file of ours
  }
  close(fd);
  return found;
}

}  // namespace mh::server
