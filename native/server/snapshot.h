// A whole copy of a chunk as bytes: the same are sent to other servers, stored and restored.
//
//   u64 version   u64 begun   u32 last lease   u32 arrays   u64 floats   u32 clients   u32 0
//   arrays x floats of float32: the weights, then the rule's states
//   clients x (u64 client, u64 its last sequence number), the one that was silent for longest first
//
// Little-endian, as everything on the wire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "server/chunk_store.h"

namespace mh::server {

struct SnapshotHead {
  std::uint64_t version, begun;
  std::uint32_t last_lease, arrays;
  std::uint64_t floats;
  std::uint32_t clients, zero;
};
static_assert(sizeof(SnapshotHead) == 40, "the head is sent as it lies in memory");

// Of a chunk of this shape with so many clients in its log.
inline std::uint64_t snapshot_bytes(const ChunkShape& shape, std::uint64_t clients) {
  return sizeof(SnapshotHead) + (1 + std::uint64_t{shape.states}) * shape.floats() * sizeof(float) +
         clients * sizeof(SequenceLog::Last);
}

SnapshotHead head_of(const Chunk& chunk);
std::vector<std::uint8_t> snapshot_of(const Chunk& chunk);
// The same, to memory of that size.
void write_snapshot(const Chunk& chunk, std::uint8_t* to);

// The head of a payload, if it is a snapshot of a chunk of this shape.
std::optional<SnapshotHead> read_head(const ChunkShape& shape, const std::uint8_t* payload,
                                      std::size_t bytes);
// Makes a held chunk the copy that the payload is; its head was read before.
void restore(Chunk& chunk, const SnapshotHead& head, const std::uint8_t* payload);

}  // namespace mh::server
