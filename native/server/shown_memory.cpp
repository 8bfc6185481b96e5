#include "server/shown_memory.h"

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

ShownMemory::ShownMemory(std::size_t bytes, Writers writers)
    : memory_((bytes + kPage - 1) / kPage * kPage, writers), secret_(random_number()) {
  std::memcpy(memory_.data(), &secret_, sizeof secret_);
}

void ShownMemory::introduce(wire::Header& header) const {
  header.client = static_cast<std::uint64_t>(getpid());
  header.sequence = static_cast<std::uint64_t>(memory_.fd());
  header.seen = memory_.bytes();
  header.place = secret_;
}

std::optional<ClientMemory> find_shown(const wire::Header& introduction, Access access) {
  const std::string path = "/proc/" + std::to_string(introduction.client) + "/fd/" +
                           std::to_string(introduction.sequence);
  const int mode = access == Access::kRead ? O_RDONLY : O_RDWR;
  const int fd = open(path.c_str(), mode | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  std::optional<ClientMemory> found;
  try {
    found.emplace(fd, introduction.seen, access);
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
