#include "server/snapshot.h"

#include <cstring>

namespace mh::server {

SnapshotHead head_of(const Chunk& chunk) {
  return {chunk.version(),
          chunk.begun,
          chunk.last_lease(),
          1 + chunk.shape->states,
          chunk.shape->floats(),
          static_cast<std::uint32_t>(chunk.log.clients()),
          0};
}

std::vector<std::uint8_t> snapshot_of(const Chunk& chunk) {
  std::vector<std::uint8_t> out(snapshot_bytes(*chunk.shape, chunk.log.clients()));
  write_snapshot(chunk, out.data());
  return out;
}

void write_snapshot(const Chunk& chunk, std::uint8_t* to) {
  const SnapshotHead head = head_of(chunk);
  const std::size_t array_bytes = chunk.shape->floats() * sizeof(float);
  std::memcpy(to, &head, sizeof head);
  to += sizeof head;
  for (std::size_t i = 0; i < head.arrays; ++i, to += array_bytes) {
    std::memcpy(to, chunk.array(i), array_bytes);
  }
  const std::vector<SequenceLog::Last> log = chunk.log.last_updates();
  if (!log.empty()) std::memcpy(to, log.data(), log.size() * sizeof log[0]);
}

std::optional<SnapshotHead> read_head(const ChunkShape& shape, const std::uint8_t* payload,
                                      std::size_t bytes) {
  SnapshotHead head;
  if (bytes < sizeof head) return std::nullopt;
  std::memcpy(&head, payload, sizeof head);
  const bool fits = head.arrays == 1 + shape.states && head.floats == shape.floats() &&
                    head.clients <= SequenceLog::kMaxClients && head.zero == 0 &&
                    bytes == snapshot_bytes(shape, head.clients);
  return fits ? std::optional(head) : std::nullopt;
}

void restore(Chunk& chunk, const SnapshotHead& head, const std::uint8_t* payload) {
  const std::size_t array_bytes = chunk.shape->floats() * sizeof(float);
  const std::uint8_t* at = payload + sizeof head;
  for (std::size_t i = 0; i < head.arrays; ++i, at += array_bytes) {
    std::memcpy(chunk.array(i), at, array_bytes);
  }
  chunk.log = SequenceLog();
  for (std::size_t i = 0; i < head.clients; ++i, at += sizeof(SequenceLog::Last)) {
    SequenceLog::Last last;
    std::memcpy(&last, at, sizeof last);
    chunk.log.note_applied(last.client, last.sequence);
  }
  chunk.begun = head.begun;
  chunk.stand_at(head.last_lease, head.version);
  chunk.row_changes.begin_era();
}

}  // namespace mh::server
