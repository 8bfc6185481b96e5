// The chunks of one lane: weights, rule states, versions, and who sent what. Owned by one thread.
//
// Weights and versions lie in shared memory, where clients of the same machine read them while they
// are updated. That race is intended: what they read may be stale or of two neighbouring versions,
// a float is never torn, and training tolerates both (Adam, section 3.2.2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "buffer.h"
#include "rule_step.h"
#include "server/layout.h"
#include "server/sequence_log.h"

namespace mh::server {

struct Chunk {
  const ChunkShape* shape;
  Rule rule;
  float* weights;
  std::uint64_t* shared_version;
  std::vector<Buffer> states;
  std::uint64_t begun = 0;  // updates begun: a step's number, also when updates arrive in pieces
  SequenceLog log;

  std::uint64_t version() const { return __atomic_load_n(shared_version, __ATOMIC_RELAXED); }
  void advance() { __atomic_store_n(shared_version, version() + 1, __ATOMIC_RELEASE); }
  float* state(std::size_t i) const { return i < states.size() ? states[i].data() : nullptr; }
  // 0 the weights, then the rule's states.
  float* array(std::size_t i) const { return i == 0 ? weights : state(i - 1); }
};

// How a chunk begins, beside its shape.
struct ChunkStart {
  Rule rule;
  std::vector<float> states;  // the value that each state is filled with
};

// Where a chunk lies in the server's shared memory, in bytes.
struct Place {
  std::size_t weights, version;
};

class ChunkStore {
 public:
  // Lays out the chunks of every lane; each lane's part begins on a page of its own.
  static std::vector<Place> places(const std::vector<ChunkShape>& chunks, std::size_t* bytes);

  // Takes the lane's chunks in the order of their slots. Call it on the lane's thread: memory that
  // a thread touches first is near it.
  void add(const ChunkShape& shape, const ChunkStart& start, const Place& place,
           std::uint8_t* memory);

  Chunk& at(const ChunkShape& shape) { return chunks_[shape.slot]; }
  // The chunks of the span that begins with this one.
  Chunk* span(const ChunkShape& first) { return &chunks_[first.slot]; }
  std::size_t size() const { return chunks_.size(); }

 private:
  std::vector<Chunk> chunks_;
};

}  // namespace mh::server
