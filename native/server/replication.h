// The primary's side of replication, for the chunks of one lane: keeps their copies on other
// servers in step, and says when an update is safe (Adam, section 3.3.3; docs/protocol.md).
//
//   1 receive   what copies answered; replies that waited for it are let go
//   2 record    every update that the round applies to a chunk with copies
//   3 flush     sends them from where they lie; sends snapshots to copies that are behind
//
// Everything happens on the lane's thread, between and within its rounds.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "server/courier.h"
#include "server/events.h"
#include "server/held_replies.h"
#include "server/peer.h"
#include "server/shipment.h"
#include "server/watch.h"

namespace mh::server {

// What a server is to some chunks of a lane, as the placement says.
struct HoldOrder {
  std::vector<std::uint32_t> slots;
  Role role;
  std::uint32_t lease;
  std::vector<int> mirrors;
  std::vector<Joining> joining;
};

class Replication {
 public:
  Replication(std::uint32_t lane, LaneContext& context, HeldReplies& held, Watch& watch,
              Events& events);

  // Ignored for chunks that are known under a higher lease.
  void hold(const HoldOrder& order);
  // Takes the socket over; an older connection to the same server is closed.
  void adopt(int fd, int peer);
  void drop(int peer);
  void mute(int peer, bool on);
  // By peer, for how many seconds something waits for it and nothing moves. Only those that wait.
  std::map<int, double> lagging();

  // The socket of a peer can be read or written.
  void ready(Peer& peer, std::uint32_t events);
  void receive();
  // Puts the floats of a client's update where copies find them, if some will look there. Says then
  // whether all are finite, which is found out in passing.
  std::optional<bool> lay_by(const Chunk& chunk, const Frame& frame);
  // An update is about to be counted by these chunks, after `ahead` others. Without a frame only
  // the result can be sent.
  void record(const Frame* frame, const Span& chunks, float rate, std::size_t ahead = 0) {
    shipment_.add(frame, chunks, rate, ahead);
  }
  // Sends updates that were recorded, though they are not applied yet: copies take them meanwhile.
  void send_ahead();
  std::size_t recorded_bytes() const { return shipment_.bytes(); }
  void flush();

  // Closes every connection.
  void close() { peers_.clear(); }

  // Another server is the chunk's primary, under this lease at least: who waits here is told.
  void fence(Chunk& chunk, std::uint32_t lease);

 private:
  Peer* find(int peer);
  void lose(Peer& peer);
  void bury_dead();

  void answered(Peer& peer, const Unanswered& sent, const wire::Header& answer);
  void take_answer(Peer& peer, Chunk& chunk, Copy& copy, const Unanswered& sent,
                   const wire::Header& answer);
  void promise(const Chunk& chunk, Copy& copy);
  void take_refusal(Peer& peer, Chunk& chunk, Copy& copy, const Unanswered& sent,
                    wire::Refusal refusal);

  void align(Chunk& chunk, Copy& copy);
  void mark_behind(Peer& peer, Chunk& chunk, Copy& copy);
  void disagree(Peer& peer, Chunk& chunk, Copy& copy);
  void ship_recorded();
  void ship(Peer& peer, const Shipped& shipped);
  bool may_wait(const Peer& peer, const Shipped& shipped) const;
  bool worth_folding(const Peer& peer, const Shipped& shipped) const;
  void send_due_snapshots(Peer& peer);
  void push_out(Peer& peer);

  const std::uint32_t lane_;
  LaneContext& context_;
  HeldReplies& held_;
  Watch& watch_;
  Events& events_;
  Shipment shipment_;
  Courier courier_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<int> muted_;
  std::uint64_t turns_ = 0;
};

}  // namespace mh::server
