#include "server/courier.h"

#include <algorithm>
#include <cstring>

#include "server/clock.h"

namespace mh::server {

using wire::Kind;

namespace {

// With more than this on its way to a slow peer, updates to it are folded into later snapshots.
constexpr std::size_t kEnoughBytes = std::size_t{8} << 20;
// So much may wait at a peer without being applied.
constexpr std::size_t kLateBytes = std::size_t{64} << 20;

Parcel parcel_of(Kind kind, const Chunk& chunk) {
  Parcel parcel;
  parcel.header.kind = static_cast<std::uint8_t>(kind);
  parcel.header.chunk = chunk.shape->chunk;
  parcel.header.lease = chunk.lease;
  return parcel;
}

}  // namespace

// --- what is sent

void Courier::introduce(Peer& peer) {
  Parcel parcel;
  parcel.header = context_.arena->introduction();
  peer.outbox.add(std::move(parcel));
  peer.unanswered.push_back({Kind::kShare, 0, 0, 0, 0, now_ns(), false, nullptr, false});
}

void Courier::take_introduction(Peer& peer, const wire::Header& answer) {
  peer.shares = static_cast<Kind>(answer.kind) == Kind::kAck && answer.count == 1;
  if (peer.shares) peer.postbox = Postbox::find(answer, context_.store.size());
  // It has closed what was before this connection.
  const auto its_own = [&](const auto& shown) { return shown.first == peer.number; };
  haunted_.erase(std::remove_if(haunted_.begin(), haunted_.end(), its_own), haunted_.end());
}

void Courier::align(Peer& peer, const Chunk& chunk, Copy& copy) {
  Parcel parcel = parcel_of(Kind::kAlign, chunk);
  parcel.header.seen = chunk.version();
  parcel.header.place = chunk.last_lease();
  peer.outbox.add(std::move(parcel));
  await(peer, Kind::kAlign, chunk, copy, chunk.version());
}

void Courier::send_update(Peer& peer, const Shipped& shipped, bool late) {
  const wire::Header& header = shipped.frame->header;
  const std::size_t bytes = header.payload_bytes;
  for (std::size_t i = 0; i < shipped.chunks.count; ++i) {
    Chunk& chunk = shipped.chunks.first[i];
    await(peer, static_cast<Kind>(header.kind), chunk, *chunk.copies.find(peer.number),
          shipped.version(i), i + 1 < shipped.chunks.count);
  }
  const auto shown = can_show(peer, bytes) ? update_in_arena(*shipped.frame) : nullptr;
  Parcel parcel = shipped.parcel(/*with_payload=*/!shown);
  late = late && shown;
  peer.unanswered.back().late = late;
  if (shown) show(peer, parcel, shown, bytes);
  if (late) parcel.header.flags |= wire::kMayWait;
  for (Chunk& chunk : shipped.chunks) {
    Copy& copy = *chunk.copies.find(peer.number);
    copy.late = late ? copy.late + 1 : 0;
  }
  peer.outbox.add(std::move(parcel));
  context_.counters.replicated_updates.add();
  context_.counters.replicated_bytes.add(bytes);
}

// Only where the copy has answered everything: it is where it said, and nothing is on its way there
// that it would find out of turn.
bool Courier::post(Peer& peer, const Shipped& shipped) {
  const Chunk& chunk = *shipped.chunks.first;
  Copy& copy = *shipped.chunks.first->copies.find(peer.number);
  const bool at_rest = copy.standing == Standing::kInStep && copy.under_way == 0 &&
                       copy.acked == shipped.seen;
  if (!peer.postbox || peer.muted || !at_rest) return false;
  const std::shared_ptr<Block> shown = update_in_arena(*shipped.frame);
  if (!shown) return false;
  const std::size_t bytes = shipped.frame->header.payload_bytes;
  Parcel parcel = shipped.parcel(/*with_payload=*/false);
  parcel.show(context_.arena->offset_of(shown->data()), bytes);
  parcel.header.flags |= wire::kMayWait;
  if (!peer.postbox->post(chunk, {parcel.header, parcel.reference})) return false;
  peer.late[chunk.shape->slot].push_back(shown);
  peer.late_bytes += shown->bytes();
  ++copy.late;
  copy.acked = shipped.seen + 1;
  context_.counters.posted_updates.add();
  context_.counters.replicated_updates.add();
  context_.counters.replicated_bytes.add(bytes);
  return true;
}

void Courier::send_snapshot(Peer& peer, const Chunk& chunk, Copy& copy) {
  const std::size_t bytes = snapshot_bytes(*chunk.shape, chunk.log.clients());
  await(peer, Kind::kSnapshot, chunk, copy, chunk.version());
  copy.late = 0;
  const auto shown = can_show(peer, bytes) ? snapshot_in_arena(chunk) : nullptr;
  Parcel parcel = parcel_of(Kind::kSnapshot, chunk);
  parcel.header.count = static_cast<std::uint32_t>(chunk.log.clients());
  if (shown) {
    show(peer, parcel, shown, bytes);
  } else {
    add_parts(chunk, parcel);
  }
  peer.outbox.add(std::move(parcel));
  context_.counters.snapshots_sent.add();
  context_.counters.replicated_bytes.add(bytes);
}

void Courier::await(Peer& peer, Kind kind, const Chunk& chunk, Copy& copy, std::uint64_t version,
                    bool more) {
  ++copy.under_way;
  peer.unanswered.push_back(
      {kind, chunk.shape->slot, chunk.lease, version, copy.turn, now_ns(), more, nullptr, false});
}

// Arrays are sent from where they lie.
void Courier::add_parts(const Chunk& chunk, Parcel& parcel) {
  const SnapshotHead head = head_of(chunk);
  const std::vector<SequenceLog::Last> log = chunk.log.last_updates();
  const std::size_t log_bytes = log.size() * sizeof(SequenceLog::Last);
  auto small = std::make_shared<Block>(context_.pool.take(sizeof head + log_bytes));
  std::memcpy(small->data(), &head, sizeof head);
  if (log_bytes > 0) std::memcpy(small->data() + sizeof head, log.data(), log_bytes);
  parcel.add(small->data(), sizeof head, small);
  for (std::size_t i = 0; i < head.arrays; ++i) {
    parcel.add(chunk.array(i), chunk.shape->floats() * sizeof(float));
  }
  parcel.add(small->data() + sizeof head, log_bytes, small);
}

// --- what is shown

bool Courier::can_show(const Peer& peer, std::size_t bytes) const {
  return peer.shares && bytes >= kLeastShared;
}

// The payload of the frame that was put on the list last stays until that is answered.
void Courier::show(Peer& peer, Parcel& parcel, std::shared_ptr<Block> payload, std::size_t bytes) {
  parcel.show(context_.arena->offset_of(payload->data()), bytes);
  Unanswered& sent = peer.unanswered.back();
  (sent.late ? peer.late_bytes : peer.shown_bytes) += payload->bytes();
  sent.shown = std::move(payload);
}

void Courier::take_back(Peer& peer, const Unanswered& sent, bool taken) {
  const bool goes_on = sent.late && taken;
  if (goes_on) return peer.late[sent.slot].push_back(sent.shown);
  if (sent.shown) (sent.late ? peer.late_bytes : peer.shown_bytes) -= sent.shown->bytes();
  if (!taken || sent.kind == Kind::kShare) return;
  const auto before = peer.late.find(sent.slot);
  if (before == peer.late.end()) return;
  for (const auto& block : before->second) peer.late_bytes -= block->bytes();
  before->second.clear();
}

// Null where there is no room.
std::shared_ptr<Block> Courier::update_in_arena(const Frame& frame) {
  std::shared_ptr<Block> block = frame.block;
  if (!block) block = keepsakes_.keep(frame.payload, frame.header.payload_bytes);
  return context_.arena->contains(block->data()) ? block : nullptr;
}

// Made once for all who need it in this round. Null where there is no room.
std::shared_ptr<Block> Courier::snapshot_in_arena(const Chunk& chunk) {
  std::shared_ptr<Block> block = keepsakes_.find(&chunk);
  if (!block) {
    const std::size_t bytes = snapshot_bytes(*chunk.shape, chunk.log.clients());
    block = std::make_shared<Block>(context_.pool.take(bytes));
    write_snapshot(chunk, block->data());
    keepsakes_.add(&chunk, block);
  }
  return context_.arena->contains(block->data()) ? block : nullptr;
}

// --- the connection

bool Courier::laden(const Peer& peer) const {
  return peer.outbox.bytes() + peer.shown_bytes >= kEnoughBytes;
}

bool Courier::can_wait(const Peer& peer, std::size_t bytes) const {
  return can_show(peer, bytes) && peer.late_bytes + bytes <= kLateBytes;
}

void Courier::send(Peer& peer) {
  if (peer.muted || !peer.writable) return;
  bool moved = false;
  const Sent sent = peer.outbox.send(peer.fd(), moved);
  if (moved) peer.moved_ns = now_ns();
  peer.dead |= sent == Sent::kBroken;
  peer.writable = sent == Sent::kAll;
}

void Courier::push_out(Peer& peer) {
  send(peer);
  peer.outbox.keep(keepsakes_);
}

void Courier::abandon(Peer& peer) {
  for (Unanswered& sent : peer.unanswered) {
    if (sent.shown) haunted_.emplace_back(peer.number, std::move(sent.shown));
  }
  for (auto& [slot, blocks] : peer.late) {
    for (auto& block : blocks) haunted_.emplace_back(peer.number, std::move(block));
  }
  peer.late.clear();
  peer.unanswered.clear();
  peer.snapshots_due.clear();
}

}  // namespace mh::server
