// Which chunks a server holds, how large they are and on which lane they live.
//
// Filled before the server starts and never changed after: every lane reads it without locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace mh::server {

struct ChunkShape {
  std::uint32_t chunk;      // its number, the same on every machine
  std::uint32_t lane;       // the thread that owns it
  std::uint32_t parameter;  // whose rows it holds
  std::uint32_t first_row, rows, row_floats;
  std::uint32_t lease;  // under which it is held from the start, where nobody replicates
  std::uint32_t states;
  // Chunks of one parameter whose rows follow each other on one lane form a span; updates by
  // factors address a span by its first chunk. 0: this chunk is not the first of its span.
  std::uint32_t span_rows = 0;
  std::uint32_t span_chunks = 0;
  std::uint32_t slot = 0;  // its place among the chunks of its lane, in the order of their rows
  bool by_rows = false;    // updates name rows: which changed when is noted (row_changes.h)

  std::size_t floats() const { return std::size_t{rows} * row_floats; }
};

class Layout {
 public:
  // Throws std::invalid_argument for a number that was added before and for a size of zero.
  void add(const ChunkShape& shape);
  // Orders the chunks by lane, parameter and row and finds the spans; `add` comes before it, `find`
  // after.
  void finish();

  const ChunkShape* find(std::uint32_t chunk) const {
    const auto at = index_.find(chunk);
    return at == index_.end() ? nullptr : &chunks_[at->second];
  }
  const std::vector<ChunkShape>& chunks() const { return chunks_; }

 private:
  std::vector<ChunkShape> chunks_;
  std::unordered_map<std::uint32_t, std::size_t> index_;
};

}  // namespace mh::server
