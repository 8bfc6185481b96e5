#include "server/chunk_store.h"

#include <algorithm>
#include <cstring>

namespace mh::server {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;
static_assert(sizeof(SharedLine) <= kLine, "a version has a line of its own");
static_assert(offsetof(SharedLine, lease) == 8, "clients look for the lease behind the version");
static_assert(offsetof(SharedLine, era) == 24, "clients look for the era there");

std::size_t aligned(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

void Chunk::stand_at(std::uint32_t last_lease, std::uint64_t version) {
  __atomic_store_n(&line->last_lease, last_lease, __ATOMIC_RELAXED);
  __atomic_store_n(&line->version, version, __ATOMIC_RELEASE);
}

void Chunk::become(Role next, std::uint32_t under_lease) {
  if (next != Role::kNone && !begun_) begin();
  const bool same = role == next && lease == under_lease;
  role = next;
  lease = under_lease;
  if (!same && next != Role::kNone) row_changes.begin_era();
  __atomic_store_n(&line->lease, next == Role::kPrimary ? lease : 0, __ATOMIC_RELEASE);
  __atomic_store_n(&line->held, next == Role::kNone ? 0 : 1, __ATOMIC_RELEASE);
}

void Chunk::begin() {
  begun_ = true;  // the weights are zeros in fresh memory, which the first update touches
  for (const float value : state_starts) {
    states.emplace_back(static_cast<Index>(shape->floats()));
    std::fill_n(states.back().data(), shape->floats(), value);
  }
}

std::vector<Place> ChunkStore::places(const std::vector<ChunkShape>& chunks, std::size_t* bytes) {
  std::vector<Place> places;
  std::size_t end = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (i > 0 && chunks[i].lane != chunks[i - 1].lane) end = aligned(end, kPage);
    // A line of its own for each version: a reader that waits on one is not woken by another's.
    Place place{end + kLine, end};
    end = aligned(end + kLine + chunks[i].floats() * sizeof(float), kLine);
    if (chunks[i].by_rows) {
      place.row_versions = end;  // the next line behind the weights: clients look for them there
      end = aligned(end + chunks[i].rows * sizeof(std::uint64_t), kLine);
    }
    places.push_back(place);
  }
  *bytes = std::max(aligned(end, kPage), kPage);
  return places;
}

void ChunkStore::add(const ChunkShape& shape, const ChunkStart& start, const Place& place,
                     std::uint8_t* memory, Role role) {
  auto* weights = reinterpret_cast<float*>(memory + place.weights);
  auto* line = reinterpret_cast<SharedLine*>(memory + place.version);
  Chunk& chunk = chunks_.emplace_back(shape, start.rule, start.states, weights, line);
  if (shape.by_rows) {
    auto* versions = reinterpret_cast<std::uint64_t*>(memory + place.row_versions);
    chunk.row_changes = RowChanges(versions, shape.rows, &line->era);
  }
  if (role == Role::kNone) return;
  std::memset(weights, 0, shape.floats() * sizeof(float));
  chunk.become(role, shape.lease);
}

bool ChunkStore::applied(const ChunkShape& shape, const wire::Header& update) const {
  const bool factors = static_cast<wire::Kind>(update.kind) == wire::Kind::kFactors;
  const std::size_t count = factors ? shape.span_chunks : 1;
  const Chunk* const first = &chunks_[shape.slot];
  return std::all_of(first, first + count, [&](const Chunk& chunk) {
    return chunk.log.applied(update.client, update.sequence);
  });
}

}  // namespace mh::server
