// Which neurons become active: those in the buckets that samples fall into, chosen by votes.
//
// A neuron has a vote for every table (and, for a whole batch, every sample) that finds it. Votes
// are counted in flat arrays of small numbers that stop at their highest; who has most is found by
// counting how many have each number of votes. Where only some of those with equal votes fit, they
// are taken at even distances from a random start, so that none is favoured.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sparse/active_batch.h"
#include "sparse/hash_functions.h"
#include "sparse/mixing.h"
#include "sparse/row_set.h"
#include "sparse/tables.h"
#include "sparse/team.h"

namespace mh {

// kVanilla: tables in random order until `limit` neurons are found. kTopK: most votes first.
// kThreshold: as kTopK, but only those with at least `votes`.
enum class Choice { kVanilla, kTopK, kThreshold };

struct SamplingSettings {
  Choice choice;
  Index limit;  // most neurons that are taken from the tables; labels come on top
  Index floor;  // random neurons fill an active set up to this size
  int votes;
  Index hardest = 0;  // of a set for a batch: the largest wrong outputs of each sample that are found
};

// What the outputs of neurons are computed from, to tell which are large.
struct OutputRows {
  const float* x = nullptr;  // [samples][ld]
  Index ld = 0;
  RowArrays weight;
  const float* bias = nullptr;  // or null
};

// Labels of sample b: labels[offsets[b]] to labels[offsets[b + 1]]. offsets null: no labels.
struct LabelRows {
  const std::int64_t* offsets;
  const std::int32_t* labels;
};

// One state of an index: functions, tables and the codes by which neurons lie in them.
struct HashedNeurons {
  HashedNeurons(const HashSettings& hash, Index neurons, int bucket, Filling filling);

  HashFunctions functions;
  Tables tables;
  Index neurons;
  HugeArray<std::uint16_t> codes;  // [tables][neurons]
  std::vector<float> centre;       // what weights are seen from; empty: the origin

  const float* seen_from() const { return centre.empty() ? nullptr : centre.data(); }
};

// Codes of samples as HashFunctions::hash writes them: codes[table * stride + sample].
struct SampleCodes {
  const std::uint16_t* codes;
  Index stride, samples;
  std::uint16_t at(Index table, Index sample) const { return codes[table * stride + sample]; }
};

// Takes `wanted` of `candidates`, which are asked about one after another, at even distances from
// a random start.
class EvenChoice {
 public:
  EvenChoice(Index wanted, Index candidates, std::uint64_t random)
      : wanted_(wanted),
        candidates_(candidates),
        sum_(static_cast<Index>(below(random, static_cast<std::uint64_t>(candidates)))) {}
  bool takes_next() {
    sum_ += wanted_;
    if (sum_ < candidates_) return false;
    sum_ -= candidates_;
    return true;
  }

 private:
  Index wanted_, candidates_, sum_;
};

// Adds random neurons until the set has `floor` rows, or all.
void fill_up(RowSet& rows, Index neurons, Index floor, std::uint64_t seed);

// Scratch of one thread that chooses for one sample at a time.
class SampleChooser {
 public:
  explicit SampleChooser(Index neurons);

  // Appends the active rows of one sample, ascending. A label must be a neuron's number.
  void choose(const HashedNeurons& state, const SampleCodes& codes, Index sample,
              const std::int32_t* labels, Index label_count, const SamplingSettings& settings,
              std::uint64_t seed, std::vector<std::int32_t>& rows);
  std::size_t bytes() const;

 private:
  void by_votes(const HashedNeurons& state, const SampleCodes& codes, Index sample,
                const SamplingSettings& settings, std::uint64_t seed);
  void by_visits(const HashedNeurons& state, const SampleCodes& codes, Index sample, Index limit,
                 std::uint64_t seed);

  RowSet set_;
  HugeArray<std::uint8_t> votes_;  // of every neuron, zero between calls
  std::vector<std::int32_t> found_;
  std::vector<Index> having_;  // how many neurons have each number of votes
  std::vector<Index> order_;
};

// Scratch of a team that chooses one active set for a whole batch.
class BatchChooser {
 public:
  explicit BatchChooser(Index neurons);

  // Replaces `rows` by the active rows of the batch, ascending.
  void choose(const HashedNeurons& state, const SampleCodes& codes, const OutputRows& outputs,
              LabelRows labels, const SamplingSettings& settings, std::uint64_t seed, Team& team,
              std::vector<std::int32_t>& rows);
  std::size_t bytes() const;

 private:
  static constexpr int kLevels = 16;

  struct Candidate {
    std::int32_t neuron;
    std::uint16_t votes;
  };

  // What one thread counts.
  struct Ballot {
    HugeArray<std::uint16_t> votes;      // of every neuron, zero between calls
    std::vector<std::uint8_t> counted;   // blocks of neurons that may have votes
    std::vector<std::uint32_t> hits;     // samples in each bucket of a table, zero between
    std::vector<std::uint16_t> buckets;  // those with hits
    // Of this thread's share of the neurons:
    Index having[kLevels];              // how many have at least 1, 2, 4, 8... votes
    std::vector<Candidate> candidates;  // ascending
    std::size_t most = 0;               // votes that one of them has
  };

  // What one thread needs to find the hardest of a sample.
  struct Seeker {
    explicit Seeker(Index neurons) : chooser(neurons) {}
    SampleChooser chooser;
    std::vector<std::int32_t> found, hardest;
    std::vector<float> outputs;
    std::vector<std::int32_t> order;
  };

  void add_hardest(const HashedNeurons& state, const SampleCodes& codes, const OutputRows& outputs,
                   LabelRows labels, const SamplingSettings& settings, std::uint64_t seed,
                   Team& team);
  void by_votes(const HashedNeurons& state, const SampleCodes& codes,
                const SamplingSettings& settings, std::uint64_t seed, Team& team);
  void by_visits(const HashedNeurons& state, const SampleCodes& codes, Index limit,
                 std::uint64_t seed);
  void count_table(const HashedNeurons& state, const SampleCodes& codes, Index table, Ballot& mine);
  void add_up(Share blocks, Ballot& mine);
  void collect(Share blocks, Index least, Ballot& mine);
  Index level_with(Index limit, Index least, int threads) const;

  Index neurons_;
  RowSet set_;
  std::vector<Ballot> ballots_;  // by thread
  std::vector<std::unique_ptr<Seeker>> seekers_;  // by thread
};

}  // namespace mh
