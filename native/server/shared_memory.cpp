#include "server/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace mh::server {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno) + ".");
}

}  // namespace

SharedMemory::SharedMemory(std::size_t bytes, Writers writers) : bytes_(bytes) {
  fd_ = memfd_create("manyhands-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd_ < 0) fail("The server's shared memory can't be made");
  void* mapped = MAP_FAILED;
  if (ftruncate(fd_, static_cast<off_t>(bytes)) == 0) {
    mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  }
  if (mapped == MAP_FAILED) {
    const int error = errno;
    close(fd_);
    errno = error;
    fail("The server's shared memory of " + std::to_string(bytes) + " bytes can't be mapped");
  }
  data_ = static_cast<std::uint8_t*>(mapped);
  // A kernel before 5.1 has no seal against later writable maps; clients are then trusted with it.
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  const int own = writers == Writers::kOwner ? F_SEAL_FUTURE_WRITE : 0;
  if (fcntl(fd_, F_ADD_SEALS, seals | own | F_SEAL_SEAL) != 0) {
    (void)fcntl(fd_, F_ADD_SEALS, seals | F_SEAL_SEAL);
  }
}

SharedMemory::~SharedMemory() {
  munmap(data_, bytes_);
  close(fd_);
}

ClientMemory::ClientMemory(int fd, std::size_t bytes, Access access) : bytes_(bytes) {
  struct stat status {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    throw std::invalid_argument(
        "The client's memory is not a memfd sealed with F_SEAL_SHRINK; expected one, so that it "
        "can't vanish while the server reads it.");
  }
  if (bytes == 0 || fstat(fd, &status) != 0 || status.st_size < 0 ||
      static_cast<std::size_t>(status.st_size) < bytes) {
    throw std::invalid_argument("The client's memory has " + std::to_string(status.st_size) +
                                " bytes; expected at least " + std::to_string(bytes) +
                                ", and not zero.");
  }
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* mapped = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) fail("The client's memory can't be mapped");
  data_ = static_cast<std::uint8_t*>(mapped);
}

ClientMemory::ClientMemory(ClientMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

ClientMemory::~ClientMemory() {
  if (data_) munmap(data_, bytes_);
}

}  // namespace mh::server
