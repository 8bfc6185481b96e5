// What is on its way to another server: headers and payloads, many in one system call.
//
// Payloads are sent from where they lie. What the socket does not take in the round in which they
// lie there is copied, once for all servers that it goes to.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "server/block_pool.h"
#include "server/decoder.h"
#include "server/replies.h"
#include "wire/frame.h"

namespace mh::server {

// Copies of payloads whose originals go when the round ends.
class Keepsakes {
 public:
  explicit Keepsakes(BlockPool& pool) : pool_(pool) {}
  std::shared_ptr<Block> keep(const std::uint8_t* data, std::size_t bytes);
  // The same for floats that nobody is going to read soon, if ever: they do not pass through the
  // cache. Says whether all of them are finite.
  bool lay_by(const std::uint8_t* data, std::size_t bytes);
  // Something put together for this round, known by where its first part lies.
  std::shared_ptr<Block> find(const void* original) const;
  void add(const void* original, std::shared_ptr<Block> block);
  void forget_originals() { kept_.clear(); }

 private:
  struct Kept {
    const void* original;
    std::shared_ptr<Block> block;
  };
  BlockPool& pool_;
  std::vector<Kept> kept_;
};

struct Parcel {
  static constexpr std::size_t kMostParts = 5;
  struct Part {
    const std::uint8_t* data = nullptr;
    std::size_t bytes = 0;
    std::shared_ptr<Block> owner;  // null: it lies elsewhere, until the round ends
  };

  wire::Header header;
  std::array<Part, kMostParts> parts;
  std::size_t part_count = 0;
  Reference reference = 0;  // of a payload that is shown instead of sent

  void add(const void* data, std::size_t bytes, std::shared_ptr<Block> owner = nullptr) {
    if (bytes == 0) return;
    parts[part_count++] = {static_cast<const std::uint8_t*>(data), bytes, std::move(owner)};
    header.payload_bytes += static_cast<std::uint32_t>(bytes);
  }
  // A payload in the arena: only its place is sent.
  void show(Reference at, std::size_t bytes) {
    header.flags |= wire::kByReference;
    header.payload_bytes = static_cast<std::uint32_t>(bytes);
    reference = at;
  }
  std::size_t bytes() const { return sizeof header + stream_bytes(header); }
};

class Outbox {
 public:
  void add(Parcel parcel);
  // Sends what the socket takes without waiting; `moved` is set if it took something.
  Sent send(int fd, bool& moved);
  // The round ends: copies what still lies elsewhere.
  void keep(Keepsakes& keepsakes);

  bool empty() const { return parcels_.empty(); }
  std::size_t bytes() const { return bytes_; }

 private:
  void drop(std::size_t bytes);

  std::deque<Parcel> parcels_;
  std::size_t head_sent_ = 0;  // bytes of the first
  std::size_t bytes_ = 0;      // of all, less those
  std::size_t kept_ = 0;       // parcels that lie in memory of their own
};

}  // namespace mh::server
