#include "server/chunk_store.h"

#include <algorithm>
#include <cstring>

namespace mh::server {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;

std::size_t aligned(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

std::vector<Place> ChunkStore::places(const std::vector<ChunkShape>& chunks, std::size_t* bytes) {
  std::vector<Place> places;
  std::size_t end = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (i > 0 && chunks[i].lane != chunks[i - 1].lane) end = aligned(end, kPage);
    // A line of its own for each version: a reader that waits on one is not woken by another's.
    places.push_back({end + kLine, end});
    end = aligned(end + kLine + chunks[i].floats() * sizeof(float), kLine);
  }
  *bytes = std::max(aligned(end, kPage), kPage);
  return places;
}

void ChunkStore::add(const ChunkShape& shape, const ChunkStart& start, const Place& place,
                     std::uint8_t* memory) {
  auto* weights = reinterpret_cast<float*>(memory + place.weights);
  auto* version = reinterpret_cast<std::uint64_t*>(memory + place.version);
  std::memset(weights, 0, shape.floats() * sizeof(float));
  __atomic_store_n(version, 0, __ATOMIC_RELEASE);
  Chunk chunk{&shape, start.rule, weights, version, {}, 0, {}};
  for (const float value : start.states) {
    chunk.states.emplace_back(static_cast<Index>(shape.floats()));
    std::fill_n(chunk.states.back().data(), shape.floats(), value);
  }
  chunks_.push_back(std::move(chunk));
}

}  // namespace mh::server
