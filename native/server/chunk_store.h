// The chunks of one lane: weights, rule states, versions, and who sent what. Owned by one thread.
//
// Weights and versions lie in shared memory, where clients of the same machine read them while they
// are updated. That race is intended: what they read may be stale or of two neighbouring versions,
// a float is never torn, and training tolerates both (Adam, section 3.2.2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/buffer.h"
#include "kernels/rule_step.h"
#include "server/copies.h"
#include "server/layout.h"
#include "server/row_changes.h"
#include "server/sequence_log.h"
#include "wire/frame.h"

namespace mh::server {

// The line before a chunk's weights. The lane writes it, other threads and processes read it.
struct SharedLine {
  std::uint64_t version;
  std::uint32_t lease;       // under which this server is the chunk's primary; 0: it is not
  std::uint32_t last_lease;  // under which the last update was applied
  std::uint32_t held;        // 1: a copy of the chunk is here
  std::uint32_t unused;
  std::uint64_t era;  // in which changes are noted by row (row_changes.h); 0: they are not
};

struct Chunk {
  Chunk(const ChunkShape& its_shape, const Rule& its_rule, const std::vector<float>& starts,
        float* its_weights, SharedLine* its_line)
      : shape(&its_shape),
        rule(its_rule),
        state_starts(starts),
        weights(its_weights),
        line(its_line) {}

  const ChunkShape* shape;
  Rule rule;
  std::vector<float> state_starts;
  float* weights;
  SharedLine* line;
  std::vector<Buffer> states;  // none before the chunk is held
  std::uint64_t begun = 0;  // updates begun: a step's number, also when updates arrive in pieces
  SequenceLog log;
  Role role = Role::kNone;
  std::uint32_t lease = 0;  // the highest that is known
  Copies copies;            // elsewhere, while this one is the primary
  std::vector<Waiting> waiting;  // replies that are held back until the copies have a version
  RowChanges row_changes;        // of a chunk whose updates name rows

  std::uint64_t version() const { return __atomic_load_n(&line->version, __ATOMIC_RELAXED); }
  std::uint32_t last_lease() const { return __atomic_load_n(&line->last_lease, __ATOMIC_RELAXED); }
  // An update was applied under the lease that is known, to any rows.
  void advance() {
    advance_rows();
    row_changes.begin_era();
  }
  // The same, and the rows that it changed were noted with the version that this makes.
  void advance_rows() { stand_at(lease, version() + 1); }
  void stand_at(std::uint32_t last_lease, std::uint64_t version);

  // Takes a role under a lease. The first one begins with zeros and the states' starts. Contents
  // outlive a role: the next one may come before the news that this one ends.
  void become(Role next, std::uint32_t under_lease);

  float* state(std::size_t i) const { return i < states.size() ? states[i].data() : nullptr; }
  // 0 the weights, then the rule's states.
  float* array(std::size_t i) const { return i == 0 ? weights : state(i - 1); }

 private:
  void begin();

  bool begun_ = false;
};

// The chunks that an update is for, neighbours: those of a span for factors, else one.
struct Span {
  Chunk* first;
  std::size_t count;

  Chunk* begin() const { return first; }
  Chunk* end() const { return first + count; }
};

// How a chunk begins, beside its shape.
struct ChunkStart {
  Rule rule;
  std::vector<float> states;  // the value that each state is filled with
};

// Where a chunk lies in the server's shared memory, in bytes.
struct Place {
  std::size_t weights, version;
  std::size_t row_versions = 0;  // of a chunk whose updates name rows, else 0
};

class ChunkStore {
 public:
  // Lays out the chunks of every lane; each lane's part begins on a page of its own.
  static std::vector<Place> places(const std::vector<ChunkShape>& chunks, std::size_t* bytes);

  // Takes the lane's chunks in the order of their slots. Call it on the lane's thread: memory that
  // a thread touches first is near it. Memory of a chunk that is not held is not touched.
  void add(const ChunkShape& shape, const ChunkStart& start, const Place& place,
           std::uint8_t* memory, Role role);

  Chunk& at(const ChunkShape& shape) { return chunks_[shape.slot]; }
  Chunk& at(std::size_t slot) { return chunks_[slot]; }
  // The chunks of the span that begins with this one.
  Span span(const ChunkShape& first) { return {&chunks_[first.slot], first.span_chunks}; }
  // Whether the update was applied before, by every chunk that it is for.
  bool applied(const ChunkShape& shape, const wire::Header& update) const;
  std::size_t size() const { return chunks_.size(); }
  std::vector<Chunk>& all() { return chunks_; }

 private:
  std::vector<Chunk> chunks_;
};

}  // namespace mh::server
