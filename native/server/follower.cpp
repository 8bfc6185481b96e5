#include "server/follower.h"

#include <stdexcept>

#include "server/backlog.h"
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
  const bool now = kind != Kind::kAlign && kind != Kind::kSnapshot && !may_wait(frame.header);
  if (!now || !continues_run(from, frame)) finish();
  if (!obey(from, frame, reply)) return;
  if (kind == Kind::kAlign) return align(from, frame, reply);
  if (kind == Kind::kSnapshot) return take_snapshot(from, frame, reply);
  if (!now) return set_aside(from, frame, reply);
  run_.push_back({&frame, &from, reply});
}

// The same chunk's, from the same primary under the same lease.
bool Follower::continues_run(const Connection& from, const Frame& frame) const {
  return !run_.empty() && run_[0].from == &from && run_[0].frame->shape == frame.shape &&
         run_[0].frame->header.lease == frame.header.lease;
}

void Follower::finish() {
  if (run_.empty()) return;
  for (const Update& update : run_) {
    for (Chunk& chunk : chunks_of(*update.frame)) context_.backlog->apply(chunk);
  }
  applier_.apply(context_.store.at(*run_[0].frame->shape), run_);
  run_.clear();
}

Span Follower::chunks_of(const Frame& frame) const {
  const bool factors = static_cast<Kind>(frame.header.kind) == Kind::kFactors;
  return {&context_.store.at(*frame.shape), factors ? frame.shape->span_chunks : 1};
}

bool Follower::obey(Connection& from, const Frame& frame, std::size_t reply) {
  const wire::Header& h = frame.header;
  const Span chunks = chunks_of(frame);
  for (Chunk& chunk : chunks) context_.backlog->close(chunk);
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
    context_.backlog->open(chunk, from);
  }
  return true;
}

// The chunk has the update, and applies it later or never.
void Follower::set_aside(Connection& from, const Frame& frame, std::size_t reply) {
  Chunk& chunk = context_.store.at(*frame.shape);
  if (!admission_.admit({&chunk, 1}, {&frame, &from, reply}, 0)) return;
  context_.backlog->add(chunk, frame, from.receiver);
  from.replies.acknowledge(reply, chunk.version());
}

// From the answer on the primary uses again what it showed over older connections.
void Follower::share(Connection& from, const Frame& frame, std::size_t reply) {
  finish();
  context_.backlog->apply_shown_by(from.receiver.sender().peer);
  std::optional<ClientMemory> found = find_shown(frame.header, Access::kRead);
  from.replies.say_in_step(reply, found.has_value());
  if (!found) return;
  from.receiver.share(std::move(*found));
  try {
    from.ledger = std::make_unique<Ledger>(context_.store.size());
    from.replies.introduce(reply, *from.ledger);
  } catch (const std::runtime_error&) {
    from.ledger = nullptr;  // every update is sent then
  }
}

void Follower::align(Connection& from, const Frame& frame, std::size_t reply) {
  Chunk& chunk = context_.store.at(*frame.shape);
  const wire::Header& h = frame.header;
  context_.backlog->apply(chunk);
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
  context_.backlog->drop(chunk);
  from.replies.acknowledge(reply, chunk.version());
}

}  // namespace mh::server
