// Puts questions, updates and snapshots on their way to a server with copies, and remembers what is
// to be answered.
//
// Payloads are sent from where they lie, or shown: a server on the same machine reads them from our
// memory (arena.h), where they stay until it has answered.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "server/lane_context.h"
#include "server/peer.h"
#include "server/shipment.h"
#include "server/snapshot.h"

namespace mh::server {

class Courier {
 public:
  explicit Courier(LaneContext& context) : context_(context), keepsakes_(context.pool) {}

  // Asks whether the other end can read our memory; to be asked first on a connection.
  void introduce(Peer& peer);
  void take_introduction(Peer& peer, const wire::Header& answer);
  // Asks whether a copy is where our chunk is.
  void align(Peer& peer, const Chunk& chunk, Copy& copy);
  // One that may be late is shown until the copy has a later frame of the chunk that may not.
  void send_update(Peer& peer, const Shipped& shipped, bool late);
  // Writes one that may be late into the copy's own memory, which has it then. False where that
  // can't be done.
  bool post(Peer& peer, const Shipped& shipped);
  void send_snapshot(Peer& peer, const Chunk& chunk, Copy& copy);

  // A frame was answered: what of it, and of those before it, need be shown no longer?
  void take_back(Peer& peer, const Unanswered& sent, bool taken);

  // Where the payload of a frame is to be shown from; whether its floats are finite.
  bool lay_by(const Frame& frame) {
    return keepsakes_.lay_by(frame.payload, frame.header.payload_bytes);
  }
  // Whether there is room for one more payload that the peer need not apply.
  bool can_wait(const Peer& peer, std::size_t bytes) const;
  // More than enough is on its way to the peer or being looked at there.
  bool laden(const Peer& peer) const;
  // Sends what the peer's socket takes.
  void send(Peer& peer);
  // And keeps what it does not: the originals are about to go or to change.
  void push_out(Peer& peer);
  // The originals of what was sent are about to go or to change.
  void end_round() { keepsakes_.forget_originals(); }
  // The connection is gone.
  void abandon(Peer& peer);

 private:
  void await(Peer& peer, wire::Kind kind, const Chunk& chunk, Copy& copy, std::uint64_t version,
             bool more = false);
  bool can_show(const Peer& peer, std::size_t bytes) const;
  void show(Peer& peer, Parcel& parcel, std::shared_ptr<Block> payload, std::size_t bytes);
  std::shared_ptr<Block> update_in_arena(const Frame& frame);
  std::shared_ptr<Block> snapshot_in_arena(const Chunk& chunk);
  void add_parts(const Chunk& chunk, Parcel& parcel);

  LaneContext& context_;
  Keepsakes keepsakes_;
  // Payloads that were shown over connections which are gone, and to whom. The other end may still
  // come upon what it has not read of them, until it has taken a new connection.
  std::vector<std::pair<int, std::shared_ptr<Block>>> haunted_;
};

}  // namespace mh::server
