#include "server/replication.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

#include "server/backlog.h"
#include "server/clock.h"
#include "server/snapshot.h"

namespace mh::server {

using wire::Kind;
using wire::Refusal;

namespace {

// A lane goes on serving its clients while it fills a copy.
constexpr std::size_t kSnapshotBytesPerRound = std::size_t{4} << 20;
// More updates of a chunk would save a copy little more, and make a promotion longer.
constexpr std::uint32_t kMostLate = 15;
// A snapshot is written by the primary and by every copy, an update that may wait by the primary.
constexpr std::uint64_t kSnapshotWorth = 4;

bool contains(const std::vector<int>& list, int number) {
  return std::find(list.begin(), list.end(), number) != list.end();
}

}  // namespace

Replication::Replication(std::uint32_t lane, LaneContext& context, HeldReplies& held, Watch& watch,
                         Events& events)
    : lane_(lane),
      context_(context),
      held_(held),
      watch_(watch),
      events_(events),
      shipment_(context.store.size()),
      courier_(context) {}

// --- roles and peers

void Replication::hold(const HoldOrder& order) {
  for (const std::uint32_t slot : order.slots) {
    Chunk& chunk = context_.store.at(slot);
    if (order.lease < chunk.lease) continue;
    context_.backlog->close(chunk);
    context_.backlog->apply(chunk);
    const bool was_primary = chunk.role == Role::kPrimary;
    const bool anew = !was_primary || order.lease > chunk.lease;
    chunk.become(order.role, order.lease);
    if (order.role != Role::kPrimary) {
      chunk.copies.clear();
      held_.refuse(chunk);
      continue;
    }
    chunk.copies.list(order.mirrors, order.joining, anew);
    for (Copy& copy : chunk.copies.all()) {
      if (copy.standing == Standing::kOut) align(chunk, copy);
      if (copy.promised && !copy.mirror) promise(chunk, copy);
    }
    held_.release(chunk);
  }
}

void Replication::fence(Chunk& chunk, std::uint32_t lease) {
  chunk.become(Role::kMirror, lease);
  chunk.copies.clear();
  held_.refuse(chunk);
  events_.tell({Event::Kind::kFenced, chunk.shape->chunk, lease, 0});
}

void Replication::adopt(int fd, int peer) {
  drop(peer);
  const int on = 1;  // fails on a unix socket, which needs none
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  peers_.push_back(std::make_unique<Peer>(fd, peer));
  Peer& made = *peers_.back();
  made.moved_ns = now_ns();
  made.muted = contains(muted_, peer);
  watch_.set(made, EPOLLIN);
  courier_.introduce(made);
  for (Chunk& chunk : context_.store.all()) {
    if (Copy* copy = chunk.copies.find(peer)) align(chunk, *copy);
  }
}

void Replication::drop(int peer) {
  Peer* found = find(peer);
  if (!found) return;
  found->dead = found->dropped = true;
  lose(*found);
}

// Nothing is known of the copies there until there is a new connection.
void Replication::lose(Peer& peer) {
  courier_.abandon(peer);
  for (Chunk& chunk : context_.store.all()) {
    Copy* copy = chunk.copies.find(peer.number);
    if (!copy) continue;
    copy->begin_turn(++turns_, Standing::kOut);
    held_.release(chunk);
  }
}

void Replication::mute(int peer, bool on) {
  muted_.erase(std::remove(muted_.begin(), muted_.end(), peer), muted_.end());
  if (on) muted_.push_back(peer);
  Peer* found = find(peer);
  if (!found) return;
  found->muted = on;
  found->writable = true;
  watch_.set(*found, EPOLLIN | EPOLLOUT);
}

Peer* Replication::find(int peer) {
  for (const auto& p : peers_) {
    if (p->number == peer && !p->dead) return p.get();
  }
  return nullptr;
}

std::map<int, double> Replication::lagging() {
  const std::int64_t now = now_ns();
  std::map<int, double> out;
  const auto note = [&](int number, const Peer* peer, std::int64_t since) {
    const std::int64_t from = peer ? std::max(since, peer->moved_ns) : since;
    double& longest = out[number];
    longest = std::max(longest, static_cast<double>(now - from) * 1e-9);
  };
  for (const auto& p : peers_) {
    if (!p->dead && !p->unanswered.empty()) {
      note(p->number, p.get(), p->unanswered.front().sent_ns);
    }
  }
  for (Chunk& chunk : context_.store.all()) {
    if (chunk.waiting.empty()) continue;
    const Waiting& oldest = chunk.waiting.front();
    for (const Copy& copy : chunk.copies.all()) {
      if (!copy.required || copy.acked >= oldest.version) continue;
      note(copy.peer, find(copy.peer), oldest.since_ns);
    }
  }
  return out;
}

// --- answers

void Replication::ready(Peer& peer, std::uint32_t events) {
  if (peer.muted || peer.dead) return;
  peer.readable |= (events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0;
  peer.writable |= (events & EPOLLOUT) != 0;
}

void Replication::receive() {
  for (const auto& p : peers_) {
    if (!p->readable || p->dead || p->muted) continue;
    p->readable = false;
    for (const wire::Header& answer : p->receive()) {
      if (p->unanswered.empty()) {
        p->dead = true;
        break;
      }
      for (bool more = true; more && !p->unanswered.empty();) {
        const Unanswered sent = std::move(p->unanswered.front());
        p->unanswered.pop_front();
        more = sent.more;
        courier_.take_back(*p, sent, static_cast<Kind>(answer.kind) == Kind::kAck);
        answered(*p, sent, answer);
      }
      p->moved_ns = now_ns();
    }
  }
}

void Replication::answered(Peer& peer, const Unanswered& sent, const wire::Header& answer) {
  if (sent.kind == Kind::kShare) return courier_.take_introduction(peer, answer);
  Chunk& chunk = context_.store.at(sent.slot);
  Copy* copy = chunk.copies.find(peer.number);
  if (!copy || copy->turn != sent.turn) return;
  --copy->under_way;
  if (static_cast<Kind>(answer.kind) == Kind::kRefused) {
    return take_refusal(peer, chunk, *copy, sent, static_cast<Refusal>(answer.count));
  }
  take_answer(peer, chunk, *copy, sent, answer);
  if (copy->folding && copy->under_way == 0) {
    copy->folding = false;
    peer.snapshots_due.push_back(sent.slot);
  }
}

void Replication::take_answer(Peer& peer, Chunk& chunk, Copy& copy, const Unanswered& sent,
                              const wire::Header& answer) {
  const bool asked = sent.kind == Kind::kAlign;
  if (asked && answer.count == 0) return disagree(peer, chunk, copy);
  copy.acked = sent.version;
  if (asked && !copy.eager && sent.version != chunk.version()) {
    return mark_behind(peer, chunk, copy);  // it has missed what came while it was asked
  }
  if (asked) copy.standing = Standing::kInStep;
  if (!copy.always_required()) promise(chunk, copy);
  held_.release(chunk);
}

void Replication::promise(const Chunk& chunk, Copy& copy) {
  copy.required = copy.promised = true;
  events_.tell({Event::Kind::kInStep, copy.peer, chunk.shape->chunk, copy.since});
}

void Replication::take_refusal(Peer& peer, Chunk& chunk, Copy& copy, const Unanswered& sent,
                               Refusal refusal) {
  if (refusal == Refusal::kStaleLease) {
    if (sent.lease == chunk.lease) fence(chunk, chunk.lease + 1);
  } else if (refusal == Refusal::kOutOfStep) {
    disagree(peer, chunk, copy);
  } else {
    peer.dead = true;  // it has another map, or is no server of ours
  }
}

// --- sending

void Replication::align(Chunk& chunk, Copy& copy) {
  Peer* peer = find(copy.peer);
  if (!peer) return;
  copy.begin_turn(++turns_, Standing::kAsked);
  copy.eager = copy.mirror;
  courier_.align(*peer, chunk, copy);
}

// It gets a snapshot instead of updates, when it has answered what is under way: what comes until
// then goes into the same snapshot.
void Replication::mark_behind(Peer& peer, Chunk& chunk, Copy& copy) {
  if (copy.standing != Standing::kInStep) return disagree(peer, chunk, copy);
  copy.standing = Standing::kBehind;
  copy.folding = copy.under_way > 0;
  if (!copy.folding) peer.snapshots_due.push_back(chunk.shape->slot);
}

// The copy is not where it was thought to be, and what it answers until it has a snapshot is void.
void Replication::disagree(Peer& peer, Chunk& chunk, Copy& copy) {
  copy.begin_turn(++turns_, Standing::kBehind);
  peer.snapshots_due.push_back(chunk.shape->slot);
  held_.release(chunk);
}

void Replication::send_ahead() {
  ship_recorded();
  for (const auto& p : peers_) {
    if (!p->dead) courier_.send(*p);
  }
}

// Snapshots are of what the round has made of the chunks.
void Replication::flush() {
  ship_recorded();
  for (const auto& p : peers_) {
    if (!p->dead) push_out(*p);
  }
  courier_.end_round();
  bury_dead();
}

void Replication::ship_recorded() {
  shipment_.close();
  for (const auto& p : peers_) {
    if (p->dead) continue;
    for (const Shipped& shipped : shipment_.all()) ship(*p, shipped);
  }
  shipment_.clear();
}

// As an update if the copies of all its chunks can take it, else those that could get a snapshot.
void Replication::ship(Peer& peer, const Shipped& shipped) {
  const auto streams = [&](Chunk& chunk) {
    const Copy* copy = chunk.copies.find(peer.number);
    return copy && copy->streams();
  };
  const bool all = std::all_of(shipped.chunks.begin(), shipped.chunks.end(), streams);
  const bool late = all && shipped.frame && may_wait(peer, shipped);
  if (late && courier_.post(peer, shipped)) return held_.release(*shipped.chunks.first);
  if (all && shipped.frame && !courier_.laden(peer)) {
    if (late) return courier_.send_update(peer, shipped, true);
    if (!shipment_.outweighs_snapshot(shipped, 1) && !worth_folding(peer, shipped)) {
      return courier_.send_update(peer, shipped, false);
    }
  }
  for (Chunk& chunk : shipped.chunks) {
    if (streams(chunk)) mark_behind(peer, chunk, *chunk.copies.find(peer.number));
  }
}

std::optional<bool> Replication::lay_by(const Chunk& chunk, const Frame& frame) {
  const auto wanted = [&](const Copy& copy) {
    const Peer* peer = copy.streams() && copy.late < kMostLate ? find(copy.peer) : nullptr;
    return peer && courier_.can_wait(*peer, frame.header.payload_bytes);
  };
  const std::vector<Copy>& all = chunk.copies.all();
  if (!std::any_of(all.begin(), all.end(), wanted)) return std::nullopt;
  return courier_.lay_by(frame);
}

// The copy may have it without applying it, for a snapshot is to follow that contains it.
bool Replication::may_wait(const Peer& peer, const Shipped& shipped) const {
  return static_cast<Kind>(shipped.frame->header.kind) == Kind::kDelta &&
         !shipment_.outweighs_snapshot(shipped, kSnapshotWorth) &&
         shipped.chunks.first->copies.find(peer.number)->late < kMostLate &&
         courier_.can_wait(peer, shipped.frame->header.payload_bytes);
}

// Where a snapshot is hardly larger than the update, one that waits for the answer to the last
// frame brings everything that several clients push meanwhile. Where it is smaller than the updates
// that wait at the copy, it saves applying them.
bool Replication::worth_folding(const Peer& peer, const Shipped& shipped) const {
  if (shipped.chunks.count > 1) return false;
  Chunk& chunk = *shipped.chunks.first;
  const Copy& copy = *chunk.copies.find(peer.number);
  const std::uint64_t update = shipped.frame->header.payload_bytes;
  const std::uint64_t snapshot = snapshot_bytes(*chunk.shape, chunk.log.clients());
  if (copy.standing != Standing::kInStep) return false;
  return (copy.under_way > 0 && 2 * snapshot <= 3 * update) ||
         (copy.late > 0 && snapshot <= copy.late * update);
}

void Replication::send_due_snapshots(Peer& peer) {
  std::size_t sent = 0;
  while (!peer.snapshots_due.empty() && sent < kSnapshotBytesPerRound && !courier_.laden(peer)) {
    Chunk& chunk = context_.store.at(peer.snapshots_due.front());
    peer.snapshots_due.pop_front();
    Copy* copy = chunk.copies.find(peer.number);
    if (!copy || copy->standing != Standing::kBehind) continue;
    copy->standing = Standing::kInStep;
    copy->required = true;
    courier_.send_snapshot(peer, chunk, *copy);
    sent += snapshot_bytes(*chunk.shape, 0);
  }
}

void Replication::push_out(Peer& peer) {
  if (!peer.muted && peer.writable) send_due_snapshots(peer);
  courier_.push_out(peer);
  // A peer that is laden sends answers, which are waited for in any case.
  const bool due = !peer.snapshots_due.empty() && !courier_.laden(peer);
  const bool more = !peer.outbox.empty() || due;
  watch_.set(peer, more ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void Replication::bury_dead() {
  for (const auto& p : peers_) {
    if (!p->dead || p->dropped) continue;
    lose(*p);
    events_.tell({Event::Kind::kPeerLost, p->number, lane_, 0});
  }
  peers_.erase(std::remove_if(peers_.begin(), peers_.end(), [](const auto& p) { return p->dead; }),
               peers_.end());
}

}  // namespace mh::server
