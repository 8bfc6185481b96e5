// Updates that a primary posts: it writes them into the memory of a copy on the same machine, which
// has them from that moment on, though nobody has woken it up.
//
// The memory is the copy's, with a page for each chunk of the lane. A page is open for the updates
// of one lease, or closed. Its state is one word that both ends change in single steps: the primary
// counts an update only while the page is open, and the copy learns how many there are by closing
// it. So whatever a primary posted the copy finds, also when it has another primary by then, and
// when either was killed (docs/protocol.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "server/chunk_store.h"
#include "server/decoder.h"
#include "server/shown_memory.h"

namespace mh::server {

// A replicated update that may wait, and where its payload is shown.
struct Posted {
  wire::Header header;
  Reference payload;
};

struct LedgerPage {
  static constexpr std::size_t kRoom = 16;

  std::uint64_t state;  // the lease, and in the lower half how many were posted; 0: closed
  std::uint32_t chunk;
  alignas(64) Posted posted[kRoom];
};

// The copy's end.
class Ledger {
 public:
  // Throws std::runtime_error where there is no memory for it.
  explicit Ledger(std::size_t slots);

  // Says in an answer where the primary finds it.
  void introduce(wire::Header& answer) const { memory_.introduce(answer); }
  // An empty page. Nothing may be posted at the time: the primary waits for an answer.
  void open(const Chunk& chunk);
  std::size_t count(const Chunk& chunk) const;
  // Nothing more is posted there. Returns how many were.
  std::size_t close(const Chunk& chunk);
  Posted posted(const Chunk& chunk, std::size_t i) const { return page(chunk).posted[i]; }

 private:
  LedgerPage& page(const Chunk& chunk) const;

  ShownMemory memory_;
};

// The primary's end.
class Postbox {
 public:
  // Null where the ledger is not found, or not of a lane with so many chunks.
  static std::unique_ptr<Postbox> find(const wire::Header& answer, std::size_t slots);

  // False if the page is closed, is open under another lease or is full: the update was not posted.
  bool post(const Chunk& chunk, const Posted& update);

 private:
  explicit Postbox(ClientMemory memory) : memory_(std::move(memory)) {}

  ClientMemory memory_;
};

}  // namespace mh::server
