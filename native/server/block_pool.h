// Memory for payloads: blocks of powers of two that go back to their lane's pool and are used again
// (Adam, section 3.3.1). One thread; a fresh block of many megabytes costs a thousand page faults,
// a used one none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/arena.h"

namespace mh::server {

class BlockPool;

// A block on loan; goes back to its pool when it is released or destroyed.
class Block {
 public:
  Block() = default;
  Block(BlockPool* pool, std::uint8_t* data, std::size_t bytes)
      : pool_(pool), data_(data), bytes_(bytes) {}
  Block(Block&& other) noexcept { *this = static_cast<Block&&>(other); }
  Block& operator=(Block&& other) noexcept;
  ~Block() { release(); }

  void release();
  std::uint8_t* data() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  BlockPool* pool_ = nullptr;
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class BlockPool {
 public:
  // Keeps up to so many bytes that nobody uses; what comes back beyond that is freed.
  explicit BlockPool(std::size_t max_idle_bytes) : max_idle_bytes_(max_idle_bytes) {}
  // From now on blocks of payloads' size lie there, while there is room.
  void use(Arena* arena) { arena_ = arena; }
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // At least so many bytes, aligned to a cache line, with any contents. Throws std::bad_alloc.
  Block take(std::size_t bytes);

 private:
  friend class Block;
  static constexpr int kSmallest = 12;  // 4 KB
  static constexpr int kSizes = 32;
  std::uint8_t* take_shared(std::size_t size, int power);
  void give_back(std::uint8_t* data, std::size_t bytes);

  std::size_t max_idle_bytes_, idle_bytes_ = 0;
  std::array<std::vector<std::uint8_t*>, kSizes> idle_, idle_shared_;
  Arena* arena_ = nullptr;
};

}  // namespace mh::server
