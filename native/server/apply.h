// Stage 3, second half: applies the updates of a round, chunk by chunk.
//
// A chunk is walked block by block, and each block takes every waiting update in order before the
// walk goes on (Adam, section 3.3.1): the block stays in the cache, whatever its rule and states.
#pragma once

#include <cstdint>
#include <vector>

#include "server/admission.h"
#include "server/batcher.h"
#include "server/factors.h"

namespace mh::server {

class Applier {
 public:
  explicit Applier(LaneContext& context)
      : context_(context), admission_(context), factors_(context, admission_) {}

  // Applies everything that waits and prepares the replies; empties the batcher.
  void apply(Batcher& batcher);
  // Applies the updates of one chunk.
  void apply(Chunk& chunk, const std::vector<Update>& queue);
  // Applies whole deltas that the chunk has counted before.
  void apply_late(Chunk& chunk, const std::vector<const Frame*>& frames);

 private:
  struct Step {
    const Frame* frame;
    const Update* update;  // null: it was answered before
    RuleStep rule;
  };

  // Each takes the run of updates of its form at the queue's `first` and returns where it ends.
  std::size_t apply_run(Chunk& chunk, const std::vector<Update>& queue, std::size_t first);
  std::size_t apply_deltas(Chunk& chunk, const std::vector<Update>& queue, std::size_t first);

  void add_step(Chunk& chunk, const Frame& frame, const Update* update, double rate);
  void walk(Chunk& chunk);
  void apply_block(Chunk& chunk, const Step& step, std::size_t first, std::size_t count);
  void apply_piece(Chunk& chunk, const Update& update);
  void apply_rows(Chunk& chunk, const Update& update);
  void set_array(Chunk& chunk, const Update& update);
  void record(Chunk& chunk, const Update& update, double rate, std::size_t ahead = 0);
  void finish(Chunk& chunk, const Update& update);
  void count(Chunk& chunk, const Update& update);

  LaneContext& context_;
  Admission admission_;
  Factors factors_;
  std::vector<Step> steps_;
  bool last_chunk_ = true;  // of the round
};

}  // namespace mh::server
