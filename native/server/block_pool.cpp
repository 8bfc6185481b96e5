#include "server/block_pool.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>
#include <utility>

namespace mh::server {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::uint8_t* allocate(std::size_t bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  auto* data = static_cast<std::uint8_t*>(std::aligned_alloc(alignment, bytes));
  if (!data) throw std::bad_alloc();
  // A wish only: where huge pages are off the block works as well, with more page faults.
  if (bytes >= kHugePage) (void)madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

// The smallest power of two that holds so many bytes.
int size_class(std::size_t bytes, int smallest) {
  int power = smallest;
  while ((std::size_t{1} << power) < bytes) ++power;
  return power;
}

}  // namespace

Block& Block::operator=(Block&& other) noexcept {
  if (this == &other) return *this;
  release();
  pool_ = std::exchange(other.pool_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void Block::release() {
  if (data_) pool_->give_back(data_, bytes_);
  pool_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

BlockPool::~BlockPool() {
  for (auto& blocks : idle_) {
    for (std::uint8_t* block : blocks) std::free(block);
  }
}

Block BlockPool::take(std::size_t bytes) {
  const int power = size_class(bytes, kSmallest);
  const std::size_t size = std::size_t{1} << power;
  if (std::uint8_t* shared = take_shared(size, power)) return Block(this, shared, size);
  auto& blocks = idle_[static_cast<std::size_t>(power)];
  if (blocks.empty()) return Block(this, allocate(size), size);
  std::uint8_t* data = blocks.back();
  blocks.pop_back();
  idle_bytes_ -= size;
  return Block(this, data, size);
}

std::uint8_t* BlockPool::take_shared(std::size_t size, int power) {
  if (!arena_ || size < kLeastShared) return nullptr;
  auto& blocks = idle_shared_[static_cast<std::size_t>(power)];
  if (blocks.empty()) return arena_->carve(size);
  std::uint8_t* data = blocks.back();
  blocks.pop_back();
  return data;
}

void BlockPool::give_back(std::uint8_t* data, std::size_t bytes) {
  if (arena_ && arena_->contains(data)) {
    idle_shared_[static_cast<std::size_t>(size_class(bytes, kSmallest))].push_back(data);
    return;
  }
  if (idle_bytes_ + bytes > max_idle_bytes_) {
    std::free(data);
    return;
  }
  idle_[static_cast<std::size_t>(size_class(bytes, kSmallest))].push_back(data);
  idle_bytes_ += bytes;
}

}  // namespace mh::server
