// Memory shared between processes of one machine: the server's own, and its view of a client's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mh::server {

// Who may write to shared memory, and what another process's is mapped for.
enum class Writers { kOwner, kAnyone };
enum class Access { kRead, kWrite };

// Memory that other processes of the same machine look into without asking. Sealed: nobody can
// change its size, and unless that is wanted no other process can map it for writing.
class SharedMemory {
 public:
  // Throws std::runtime_error where the system has no such memory.
  explicit SharedMemory(std::size_t bytes, Writers writers = Writers::kOwner);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::uint8_t* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// A client's memory, to read payloads from where they lie. The client may write to it at any time:
// what is read from it is never trusted twice.
class ClientMemory {
 public:
  ClientMemory() = default;
  // Does not keep the descriptor. Throws std::invalid_argument unless it is a memfd of at least so
  // many bytes, sealed against shrinking: reading behind the end of a shrunken one would end the
  // whole process.
  ClientMemory(int fd, std::size_t bytes, Access access = Access::kRead);
  ClientMemory(ClientMemory&& other) noexcept;
  ClientMemory& operator=(ClientMemory&&) = delete;
  ~ClientMemory();

  const std::uint8_t* data() const { return data_; }
  std::uint8_t* writable() const { return data_; }  // where it was mapped for that
  std::size_t bytes() const { return bytes_; }

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace mh::server
