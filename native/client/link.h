// One connection to one lane of a server: push, pull and their kin, each a call that blocks.
//
// Not thread-safe. Arrays are the caller's and must stay unchanged until a call returns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "client/envelope.h"
#include "client/exchange.h"
#include "client/shared_values.h"

namespace mh::client {

struct LinkSettings {
  std::uint64_t client;
  std::size_t window;
  double timeout_s;
  Memory own;     // shared with the server: payloads inside it go by reference
  Memory values;  // the server's: pulls copy out of it
  void (*check_signals)();
};

// Chunks and the ranges of the flat arrays that they are.
struct Chunks {
  std::size_t size;
  const std::uint32_t* numbers;
  const std::int64_t* starts;
  const std::int64_t* counts;
  std::int64_t* versions;  // in: those that the updates were computed at; out: those answered
  const std::uint32_t* leases = nullptr;  // of each; null: no opinion of any
  std::int8_t* outcomes = nullptr;        // out, of each: see ChunkOutcome

  Address address(std::size_t i) const { return {numbers[i], leases ? leases[i] : 0}; }
};

// What became of a chunk of a call that failed. Below zero: the wire::Refusal, negated.
enum ChunkOutcome : std::int8_t { kUnanswered = 0, kCarriedOut = 1 };

struct Factors {
  std::uint32_t samples;
  const float* a;
  std::size_t a_floats;
  const float* d;
  std::size_t d_floats;
};

// Rows of many chunks. Of each chunk, its range says which of `numbers` are its rows, in its own
// numbering; their values begin at its place in `values`, so many floats a row.
struct Rows {
  const std::uint32_t* numbers;
  const float* values;
  const std::int64_t* value_starts;
  const std::int64_t* widths;
};

// What is known of chunks' rows: see server/row_changes.h.
struct KnownRows {
  std::int64_t* eras;               // in: of the versions that are known; out: of those answered
  const std::int64_t* widths;       // floats of a row
  const std::int64_t* row_starts;   // of each chunk's rows in `changed`
  std::uint8_t* changed;            // receives 1 for every row that came
};

// Of payloads, as encoded.
struct Traffic {
  std::uint64_t pushed_bytes = 0, pulled_bytes = 0;
};

// What an answer tells of a chunk: its version, and with values the updates that were begun.
struct ChunkState {
  std::uint64_t version = 0;
  std::uint32_t updates = 0;
};

class Link {
 public:
  Link(int fd, const LinkSettings& settings);

  // Calls with many chunks write their outcomes also when they throw: what was carried out need
  // not be asked for again. `sent`, if not null, receives the values as the server decodes them.
  void push(const Chunks& chunks, const float* values, float* sent, const Update& update,
            const Compression& compression);
  void pull(const Chunks& chunks, float* out, wire::Encoding encoding);
  // `out` receives each chunk's values as they are once its update was applied, or newer.
  void push_pull(const Chunks& chunks, const float* values, float* sent, float* out,
                 const Update& update, const Compression& compression);

  // Rows of each chunk; the chunks' ranges are those of the rows' numbers.
  void push_rows(const Chunks& chunks, const Rows& rows, const Update& update);
  // Fetches the rows that changed since the versions and eras that are known, or whole chunks.
  void pull_rows(const Chunks& chunks, const KnownRows& known, float* out,
                 wire::Encoding encoding);

  // These return the chunk's version.
  std::uint64_t push_factors(const Address& chunk, const Factors& factors, const Update& update,
                             std::uint64_t seen, wire::Encoding encoding);
  // `updates`, if not 0, is how many the chunk is to believe that it has had.
  std::uint64_t set(const Address& chunk, std::uint32_t array, const float* values,
                    std::size_t floats, std::uint64_t sequence, std::uint32_t updates);
  ChunkState get(const Address& chunk, std::uint32_t array, float* out, std::size_t floats);

  // Where in the server's memory a chunk's weights, and its version and lease, lie.
  void place(std::uint32_t chunk, std::uint64_t weights, std::uint64_t version) {
    shared_.place(chunk, weights, version);
  }

  // A call in another thread ends with ConnectionLost, and so does every later one.
  void hang_up() { exchange_.hang_up(); }
  double waited_s() const { return exchange_.waited_s(); }
  const Traffic& traffic() const { return traffic_; }

 private:
  template <typename Prepare>
  ChunkState run_one(const Prepare& prepare);

  Exchange exchange_;
  Envelope envelope_;
  SharedValues shared_;
  Traffic traffic_;
};

}  // namespace mh::client
