#include "server/outbox.h"

#include <algorithm>
#include <cstring>

#include "server/past_cache.h"
#include "wire/io.h"

namespace mh::server {
namespace {

constexpr std::size_t kMostAtOnce = 64;

// Parts for one system call; `skip` bytes were sent before.
struct Gathered {
  iovec list[kMostAtOnce];
  std::size_t count = 0, skip = 0;

  bool full() const { return count + 2 + Parcel::kMostParts > kMostAtOnce; }
  void add(const void* data, std::size_t bytes) {
    const std::size_t gone = std::min(skip, bytes);
    skip -= gone;
    if (gone == bytes) return;
    list[count++] = {const_cast<char*>(static_cast<const char*>(data)) + gone, bytes - gone};
  }
};

}  // namespace

std::shared_ptr<Block> Keepsakes::keep(const std::uint8_t* data, std::size_t bytes) {
  if (std::shared_ptr<Block> known = find(data)) return known;
  auto block = std::make_shared<Block>(pool_.take(bytes));
  std::memcpy(block->data(), data, bytes);
  add(data, block);
  return block;
}

bool Keepsakes::lay_by(const std::uint8_t* data, std::size_t bytes) {
  auto block = std::make_shared<Block>(pool_.take(bytes));
  const bool finite = copy_past_cache(data, bytes, block->data());
  add(data, std::move(block));
  return finite;
}

std::shared_ptr<Block> Keepsakes::find(const void* original) const {
  for (const Kept& kept : kept_) {
    if (kept.original == original) return kept.block;
  }
  return nullptr;
}

void Keepsakes::add(const void* original, std::shared_ptr<Block> block) {
  kept_.push_back({original, std::move(block)});
}

void Outbox::add(Parcel parcel) {
  bytes_ += parcel.bytes();
  parcels_.push_back(std::move(parcel));
}

Sent Outbox::send(int fd, bool& moved) {
  while (!parcels_.empty()) {
    Gathered gathered;
    gathered.skip = head_sent_;
    for (auto at = parcels_.begin(); at != parcels_.end() && !gathered.full(); ++at) {
      gathered.add(&at->header, sizeof at->header);
      if (by_reference(at->header)) gathered.add(&at->reference, sizeof at->reference);
      for (std::size_t i = 0; i < at->part_count; ++i) {
        gathered.add(at->parts[i].data, at->parts[i].bytes);
      }
    }
    const wire::Moved sent = wire::send_now(fd, gathered.list, gathered.count);
    if (sent.outcome == wire::Outcome::kNotNow) return Sent::kBlocked;
    if (sent.outcome != wire::Outcome::kDone) return Sent::kBroken;
    moved = true;
    drop(sent.bytes);
  }
  return Sent::kAll;
}

void Outbox::drop(std::size_t bytes) {
  bytes_ -= bytes;
  head_sent_ += bytes;
  while (!parcels_.empty() && head_sent_ >= parcels_.front().bytes()) {
    head_sent_ -= parcels_.front().bytes();
    parcels_.pop_front();
    if (kept_ > 0) --kept_;
  }
}

void Outbox::keep(Keepsakes& keepsakes) {
  for (; kept_ < parcels_.size(); ++kept_) {
    Parcel& parcel = parcels_[kept_];
    for (std::size_t i = 0; i < parcel.part_count; ++i) {
      Parcel::Part& part = parcel.parts[i];
      if (part.owner) continue;
      part.owner = keepsakes.keep(part.data, part.bytes);
      part.data = part.owner->data();
    }
  }
}

}  // namespace mh::server
