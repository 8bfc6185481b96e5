#include "server/held_replies.h"

#include <algorithm>
#include <utility>

#include "server/clock.h"

namespace mh::server {

bool HeldReplies::hold(const Update& update, const Span& chunks, std::size_t ahead) {
  const auto safe = [=](const Chunk& c) { return c.copies.committed() >= c.version() + ahead; };
  if (std::all_of(chunks.begin(), chunks.end(), safe)) return false;
  const std::uint32_t number = take_place();
  Held& held = held_[number];
  const std::uint64_t version = chunks.first->version() + ahead;
  held = {update.from, update.frame->header, chunks.first, version, 0, false};
  const std::int64_t now = now_ns();
  for (Chunk& chunk : chunks) {
    if (safe(chunk)) continue;
    chunk.waiting.push_back({chunk.version() + ahead, number, now});
    ++held.missing;
  }
  update.from->replies.withdraw(update.reply);
  ++update.from->held;
  context_.counters.held_replies.add();
  return true;
}

std::uint32_t HeldReplies::take_place() {
  if (free_.empty()) {
    held_.emplace_back();
    return static_cast<std::uint32_t>(held_.size() - 1);
  }
  const std::uint32_t number = free_.back();
  free_.pop_back();
  return number;
}

void HeldReplies::release(Chunk& chunk) {
  const std::uint64_t committed = chunk.copies.committed();
  const auto end = std::find_if(chunk.waiting.begin(), chunk.waiting.end(),
                                [=](const Waiting& w) { return w.version > committed; });
  for (auto at = chunk.waiting.begin(); at != end; ++at) let_go(at->reply);
  chunk.waiting.erase(chunk.waiting.begin(), end);
}

void HeldReplies::refuse(Chunk& chunk) {
  const std::vector<Waiting> waiting = std::exchange(chunk.waiting, {});
  for (const Waiting& w : waiting) {
    held_[w.reply].refused = true;
    let_go(w.reply);
  }
}

// The last chunk that a reply waits for lets it go.
void HeldReplies::let_go(std::uint32_t number) {
  Held& held = held_[number];
  if (--held.missing > 0) return;
  if (held.from) answer(held);
  held.from = nullptr;
  context_.counters.held_replies.add(std::uint64_t{0} - 1);
  free_.push_back(number);
}

void HeldReplies::answer(const Held& held) {
  Replies& replies = held.from->replies;
  const std::size_t place = replies.add(held.request);
  if (held.refused) {
    replies.refuse(place, wire::Refusal::kStaleLease,
                   "This server stopped being the primary of chunk " +
                       std::to_string(held.request.chunk) + " before its copies had the update.");
  } else {
    replies.acknowledge(place, held.version);
    if (held.request.flags & wire::kWantValues) {
      replies.give_values(place, *held.chunk, 0, wire::Encoding::kFloat32);
    }
  }
  --held.from->held;
  ready_.push_back(held.from);
}

void HeldReplies::forget(const Connection& connection) {
  for (Held& held : held_) {
    if (held.from == &connection) held.from = nullptr;
  }
}

std::vector<Connection*> HeldReplies::take_ready() { return std::exchange(ready_, {}); }

}  // namespace mh::server
