#include "server/server.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace mh::server {
namespace {

constexpr std::size_t kLargestPayload = 0xffffffffu;  // a header's field has 32 bits
constexpr std::size_t kSmallestPayload = 1u << 16;

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

void add(Totals& t, const Counters& c) {
  t.updates += c.updates.value();
  t.pushed_bytes += c.pushed_bytes.value();
  t.pulled_bytes += c.pulled_bytes.value();
  t.frames += c.frames.value();
  t.replays += c.replays.value();
  t.busy_ns += c.busy_ns.value();
  t.rounds += c.rounds.value();
  t.batched_max = std::max(t.batched_max, c.batched_max.value());
  t.connections += c.connections.value();
  t.waiting_bytes += c.waiting_bytes.value();
  t.blocked_replies += c.blocked_replies.value();
  t.replicated_updates += c.replicated_updates.value();
  t.replicated_bytes += c.replicated_bytes.value();
  t.snapshots_sent += c.snapshots_sent.value();
  t.late_updates += c.late_updates.value();
  t.posted_updates += c.posted_updates.value();
  t.held_replies += c.held_replies.value();
  for (std::size_t i = 0; i < kRefusals; ++i) t.refused[i] += c.refused[i].value();
  for (std::size_t i = 0; i < kStalenessBins; ++i) t.staleness[i] += c.staleness[i].value();
}

}  // namespace

ChunkServer::ChunkServer(std::uint32_t lanes, const ServerSettings& settings)
    : settings_(settings), lane_count_(lanes) {
  require(lanes > 0, "A server of no lanes was asked for; expected at least one.");
  require(settings.max_payload_bytes >= kSmallestPayload &&
              settings.max_payload_bytes <= kLargestPayload,
          "max_payload_bytes is " + std::to_string(settings.max_payload_bytes) + "; expected " +
              std::to_string(kSmallestPayload) + " to " + std::to_string(kLargestPayload) + ".");
}

ChunkServer::~ChunkServer() { stop(); }

void ChunkServer::add_chunk(const ChunkShape& shape, const ChunkStart& start) {
  require(!started_, "Chunks are added before the server starts.");
  require(shape.lane < lane_count_, "Chunk " + std::to_string(shape.chunk) + " is for lane " +
                                        std::to_string(shape.lane) + "; the server has " +
                                        std::to_string(lane_count_) + ".");
  require(start.states.size() == static_cast<std::size_t>(start.rule.states()),
          "Chunk " + std::to_string(shape.chunk) + " came with " +
              std::to_string(start.states.size()) + " state starts; expected " +
              std::to_string(start.rule.states()) + " for its rule.");
  require(shape.floats() <= settings_.max_payload_bytes / sizeof(float),
          "Chunk " + std::to_string(shape.chunk) + " has " + std::to_string(shape.floats()) +
              " numbers; at most " + std::to_string(settings_.max_payload_bytes / sizeof(float)) +
              " fit a payload of max_payload_bytes.");
  layout_.add(shape);
  starts_.emplace_back(shape.chunk, start);
}

void ChunkServer::start() {
  require(!started_, "The server was started before.");
  started_ = true;
  layout_.finish();
  const std::vector<ChunkShape>& chunks = layout_.chunks();
  std::size_t bytes = 0;
  places_ = ChunkStore::places(chunks, &bytes);
  memory_ = std::make_unique<SharedMemory>(bytes);
  std::unordered_map<std::uint32_t, const ChunkStart*> by_chunk;
  for (const auto& [chunk, start] : starts_) by_chunk[chunk] = &start;
  std::vector<ChunkStart> ordered;
  for (const ChunkShape& shape : chunks) ordered.push_back(*by_chunk.at(shape.chunk));
  for (std::uint32_t i = 0; i < lane_count_; ++i) {
    lanes_.push_back(std::make_unique<Lane>(i, settings_, layout_, events_));
    lanes_.back()->start(ordered, places_, memory_->data());
  }
}

void ChunkServer::stop() {
  stopped_ = true;
  events_.close();
  for (const auto& lane : lanes_) lane->stop();
}

void ChunkServer::adopt(int fd, const Sender& sender, int shared_fd) {
  if (sender.peer >= 0) require_replicated();
  require_lane(sender.lane);
  ClientMemory memory =
      shared_fd >= 0 ? ClientMemory(shared_fd, sender.shared_bytes) : ClientMemory();
  Sender checked = sender;
  checked.shared_bytes = memory.bytes();
  lanes_[sender.lane]->adopt(fd, checked, std::move(memory));
}

Place ChunkServer::place_of(std::uint32_t chunk) const {
  (void)memory();
  return places_[static_cast<std::size_t>(&shape_of(chunk) - layout_.chunks().data())];
}

const ChunkShape& ChunkServer::shape_of(std::uint32_t chunk) const {
  const ChunkShape* shape = layout_.find(chunk);
  require(shape != nullptr, "This server does not hold chunk " + std::to_string(chunk) + ".");
  return *shape;
}

void ChunkServer::hold(const std::vector<std::uint32_t>& chunks, const HoldOrder& order) {
  require_replicated();
  require(order.lease > 0, "A chunk is held under lease 0; expected 1 or more.");
  std::vector<HoldOrder> by_lane(lane_count_, order);
  for (const std::uint32_t chunk : chunks) {
    const ChunkShape& shape = shape_of(chunk);
    by_lane[shape.lane].slots.push_back(shape.slot);
  }
  for (std::uint32_t i = 0; i < lane_count_; ++i) {
    if (!by_lane[i].slots.empty()) lanes_[i]->hold(std::move(by_lane[i]));
  }
}

void ChunkServer::adopt_peer(int fd, std::uint32_t lane, int peer) {
  require_replicated();
  require_lane(lane);
  require(peer >= 0, "A peer has the number " + std::to_string(peer) + "; expected 0 or more.");
  lanes_[lane]->adopt_peer(fd, peer);
}

void ChunkServer::drop_peer(int peer) {
  require_replicated();
  for (const auto& lane : lanes_) lane->drop_peer(peer);
}

void ChunkServer::mute_peer(int peer, bool on) {
  require_replicated();
  for (const auto& lane : lanes_) lane->mute_peer(peer, on);
}

std::map<int, double> ChunkServer::lagging() {
  require_replicated();
  std::map<int, double> longest;
  for (const auto& lane : lanes_) {
    for (const auto& [peer, seconds] : lane->lagging()) {
      longest[peer] = std::max(longest[peer], seconds);
    }
  }
  return longest;
}

std::vector<ChunkServer::Progress> ChunkServer::progress() const {
  std::vector<Progress> out;
  const std::vector<ChunkShape>& chunks = layout_.chunks();
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const auto* line = reinterpret_cast<const SharedLine*>(memory().data() + places_[i].version);
    if (__atomic_load_n(&line->held, __ATOMIC_ACQUIRE) == 0) continue;
    out.push_back({chunks[i].chunk, __atomic_load_n(&line->last_lease, __ATOMIC_RELAXED),
                   __atomic_load_n(&line->version, __ATOMIC_ACQUIRE)});
  }
  return out;
}

std::vector<std::uint8_t> ChunkServer::collect(std::uint32_t chunk, std::int64_t since) {
  require_running();
  const ChunkShape& shape = shape_of(chunk);
  return lanes_[shape.lane]->collect(shape.slot, since);
}

void ChunkServer::restore(std::uint32_t chunk, const std::uint8_t* snapshot, std::size_t bytes,
                          std::uint32_t lease) {
  require_replicated();
  const ChunkShape& shape = shape_of(chunk);
  lanes_[shape.lane]->restore(shape.slot, snapshot, bytes, lease);
}

Totals ChunkServer::totals() const {
  Totals totals;
  for (const auto& lane : lanes_) add(totals, lane->counters());
  return totals;
}

const SharedMemory& ChunkServer::memory() const {
  require(memory_ != nullptr, "The server has no memory before it starts.");
  return *memory_;
}

void ChunkServer::require_running() const {
  require(started_ && !stopped_, "The server is not running.");
}

void ChunkServer::require_replicated() const {
  require_running();
  require(settings_.replicated, "The server was not made with replicated=True.");
}

void ChunkServer::require_lane(std::uint32_t lane) const {
  require_running();
  require(lane < lane_count_, "A connection is for lane " + std::to_string(lane) +
                                  "; the server has " + std::to_string(lane_count_) + ".");
}

}  // namespace mh::server
