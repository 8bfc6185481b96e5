#include "server/follower.h"

#include "server/arena.h"
#include "server/replication.h"
#include "server/snapshot.h"

namespace mh::server {

using wire::Kind;
using wire::Refusal;

void Follower::add(Connection& from, const Frame& frame) {
  context_.counters.frames.add();
  const std::size_t reply = from.replies.add(frame.header);
  if (!frame.shape) return from.replies.refuse(reply, frame.refusal, frame.sentence);
  const auto kind = static_cast<Kind>(frame.header.kind);
  if (kind == Kind::kShare) return share(from, frame, reply);
  const bool update = kind != Kind::kAlign && kind != Kind::kSnapshot;
  if (!update || !continues_run(from, frame)) finish();
  if (!obey(from, frame, reply)) return;
  if (kind == Kind::kAlign) return align(from, frame, reply);
  if (kind == Kind::kSnapshot) return take_snapshot(from, frame, reply);
  run_.push_back({&frame, &from, reply});
}

// The same chunk's, from the same primary under the same lease.
bool Follower::continues_run(const Connection& from, const Frame& frame) const {
  return !run_.empty() && run_[0].from == &from && run_[0].frame->shape == frame.shape &&
         run_[0].frame->header.lease == frame.header.lease;
}

void Follower::finish() {
  if (run_.empty()) return;
  applier_.apply(context_.store.at(*run_[0].frame->shape), run_);
  run_.clear();
}

bool Follower::obey(Connection& from, const Frame& frame, std::size_t reply) {
  const wire::Header& h = frame.header;
  const bool factors = static_cast<Kind>(h.kind) == Kind::kFactors;
  Chunk* const first = &context_.store.at(*frame.shape);
  const Span chunks{first, factors ? frame.shape->span_chunks : 1};
  for (const Chunk& chunk : chunks) {
    if (h.lease > chunk.lease || (h.lease == chunk.lease && chunk.role != Role::kPrimary)) continue;
    from.replies.refuse(reply, Refusal::kStaleLease,
                        "Chunk " + std::to_string(chunk.shape->chunk) + " is known under lease " +
                            std::to_string(chunk.lease) + "; the primary's is " +
                            std::to_string(h.lease) + ".");
    return false;
  }
  for (Chunk& chunk : chunks) {
    if (chunk.role == Role::kPrimary) context_.replication->fence(chunk, h.lease);
    chunk.become(Role::kMirror, h.lease);
  }
  return true;
}

void Follower::share(Connection& from, const Frame& frame, std::size_t reply) {
  std::optional<ClientMemory> found = find_arena(frame.header);
  from.replies.say_in_step(reply, found.has_value());
  if (found) from.receiver.share(std::move(*found));
}

void Follower::align(Connection& from, const Frame& frame, std::size_t reply) {
  const Chunk& chunk = context_.store.at(*frame.shape);
  const wire::Header& h = frame.header;
  from.replies.acknowledge(reply, chunk.version());
  from.replies.say_in_step(reply, h.seen == chunk.version() && h.place == chunk.last_lease());
}

void Follower::take_snapshot(Connection& from, const Frame& frame, std::size_t reply) {
  Chunk& chunk = context_.store.at(*frame.shape);
  const wire::Header& h = frame.header;
  const auto head = read_head(*chunk.shape, frame.payload, h.payload_bytes);
  if (!head) {
    return from.replies.refuse(reply, Refusal::kWrongSize,
                               "The snapshot is not of a chunk like " + std::to_string(h.chunk) +
                                   ".");
  }
  // Under this lease the primary was further already: the snapshot was overtaken on its way.
  if (chunk.last_lease() == h.lease && head->version < chunk.version()) {
    return from.replies.refuse(reply, Refusal::kOutOfStep,
                               "This copy of chunk " + std::to_string(h.chunk) + " is at version " +
                                   std::to_string(chunk.version()) + "; the snapshot is of " +
                                   std::to_string(head->version) + ".");
  }
  restore(chunk, *head, frame.payload);
  from.replies.acknowledge(reply, chunk.version());
}

}  // namespace mh::server
