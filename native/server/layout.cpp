#include "server/layout.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>

namespace mh::server {
namespace {

bool follows(const ChunkShape& before, const ChunkShape& after) {
  return before.lane == after.lane && before.parameter == after.parameter &&
         before.row_floats == after.row_floats && before.first_row + before.rows == after.first_row;
}

}  // namespace

void Layout::add(const ChunkShape& shape) {
  if (shape.rows == 0 || shape.row_floats == 0) {
    throw std::invalid_argument("Chunk " + std::to_string(shape.chunk) +
                                " has no rows or rows without numbers; expected at least one.");
  }
  if (!index_.emplace(shape.chunk, chunks_.size()).second) {
    throw std::invalid_argument("Chunk " + std::to_string(shape.chunk) +
                                " was added before; a server holds a chunk once.");
  }
  chunks_.push_back(shape);
}

void Layout::finish() {
  std::sort(chunks_.begin(), chunks_.end(), [](const ChunkShape& a, const ChunkShape& b) {
    return std::tie(a.lane, a.parameter, a.first_row) < std::tie(b.lane, b.parameter, b.first_row);
  });
  ChunkShape* first = nullptr;
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    ChunkShape& chunk = chunks_[i];
    index_[chunk.chunk] = i;
    const bool same_lane = i > 0 && chunks_[i - 1].lane == chunk.lane;
    chunk.slot = same_lane ? chunks_[i - 1].slot + 1 : 0;
    if (i == 0 || !follows(chunks_[i - 1], chunk)) first = &chunk;
    first->span_rows += chunk.rows;
    first->span_chunks += 1;
  }
}

}  // namespace mh::server
