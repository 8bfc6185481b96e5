// The native half of a parameter server: lanes, their shared memory, and the door that connections
// come in by (Adam, section 3.3.1).
//
// It opens no socket by name, knows no token and no TLS: Python decides who may come and hands over
// connected, authenticated descriptors. Thread-safe once started.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "server/events.h"
#include "server/lane.h"
#include "server/shared_memory.h"

namespace mh::server {

struct Totals {
  std::uint64_t updates = 0, pushed_bytes = 0, pulled_bytes = 0, frames = 0, replays = 0;
  std::uint64_t busy_ns = 0, rounds = 0, batched_max = 0;
  std::uint64_t connections = 0, waiting_bytes = 0, blocked_replies = 0;
  std::uint64_t replicated_updates = 0, replicated_bytes = 0, snapshots_sent = 0;
  std::uint64_t late_updates = 0, posted_updates = 0, held_replies = 0;
  std::array<std::uint64_t, kRefusals> refused{};
  std::array<std::uint64_t, kStalenessBins> staleness{};
};

class ChunkServer {
 public:
  // Throws std::invalid_argument for no lanes, and for a limit outside what a header can say.
  ChunkServer(std::uint32_t lanes, const ServerSettings& settings);
  ~ChunkServer();

  // Before start. Weights are zeros until they are set. Throws std::invalid_argument.
  void add_chunk(const ChunkShape& shape, const ChunkStart& start);
  void start();
  // Ends the lanes and closes their connections; the memory stays until the server goes.
  void stop();

  // Takes the socket over unless it throws. `shared_fd` is only looked at: the caller closes it.
  void adopt(int fd, const Sender& sender, int shared_fd);

  // --- replication; only of a server that was made for it
  // What this server is to these chunks from now on. Done by the lanes, in the order of the calls.
  void hold(const std::vector<std::uint32_t>& chunks, const HoldOrder& order);
  // Our connection to the copies on another server; takes the socket over unless it throws.
  void adopt_peer(int fd, std::uint32_t lane, int peer);
  void drop_peer(int peer);
  void mute_peer(int peer, bool on);
  std::vector<Event> wait_events(double timeout_s) { return events_.wait(timeout_s); }
  std::map<int, double> lagging();

  // A chunk's position; of those that are held.
  struct Progress {
    std::uint32_t chunk, last_lease;
    std::uint64_t version;
  };
  std::vector<Progress> progress() const;
  // A snapshot (snapshot.h), empty if the chunk is not held or its version not above `since`.
  std::vector<std::uint8_t> collect(std::uint32_t chunk, std::int64_t since);
  // Throws std::invalid_argument for what is no snapshot of the chunk.
  void restore(std::uint32_t chunk, const std::uint8_t* snapshot, std::size_t bytes,
               std::uint32_t lease);

  int memory_fd() const { return memory().fd(); }
  std::size_t memory_bytes() const { return memory().bytes(); }
  Place place_of(std::uint32_t chunk) const;
  Totals totals() const;

 private:
  const SharedMemory& memory() const;
  const ChunkShape& shape_of(std::uint32_t chunk) const;
  void require_running() const;
  void require_replicated() const;
  void require_lane(std::uint32_t lane) const;

  const ServerSettings settings_;
  const std::uint32_t lane_count_;
  Layout layout_;
  std::vector<std::pair<std::uint32_t, ChunkStart>> starts_;  // by chunk
  std::vector<Place> places_;                                 // in the layout's order
  std::unique_ptr<SharedMemory> memory_;
  Events events_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  bool started_ = false;
  std::atomic<bool> stopped_{false};
};

}  // namespace mh::server
