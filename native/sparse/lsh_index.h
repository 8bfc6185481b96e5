// An index of a wide layer's neurons: which of them are likely to answer an input strongly.
//
// Neurons lie in hash tables by the hash codes of their weights; an input is hashed the same way,
// and the neurons in its buckets are its active set (SLIDE, section 3). The index knows row
// numbers only: weights belong to the caller, who says which rows have changed.
//
// Threads: any number may choose or mark at a time. build, refresh and rebuild wait for each other
// and for nobody else: refresh moves neurons in place beside those who choose, build and rebuild
// make new tables beside the old and put them in place at once. They may read weights that others
// write meanwhile: such a race is intended (a neuron that is hashed half old, half new has been
// marked, and is hashed again by the next refresh). The same state, inputs and seed give the same
// rows, for any number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "sparse/sampler.h"

namespace mh {

struct IndexSettings {
  HashKind kind;
  Index neurons, width;
  int hashes;      // K: hash functions of a table
  int tables;      // L
  int bucket;      // neurons that a bucket holds
  int bin;         // not SimHash: coordinates that compete
  double density;  // SimHash: share of coordinates in a sum; MinHash: share that makes the set
  Filling filling;
  std::uint64_t seed;
};

// The neurons' weights where they lie: row i begins i * stride floats behind the first.
struct WeightRows {
  const float* first;
  Index stride;
  const float* row(Index i) const { return first + i * stride; }
};

class LshIndex {
 public:
  // Throws std::invalid_argument, one sentence.
  explicit LshIndex(const IndexSettings& settings);
  ~LshIndex();
  LshIndex(const LshIndex&) = delete;
  LshIndex& operator=(const LshIndex&) = delete;

  // Puts all neurons into the tables.
  void build(const WeightRows& weight, Team& team);
  bool built() const { return current() != nullptr; }

  // Inputs that training meets. SimHash sees them from their running mean, of some thousands of
  // samples: behind a ReLU all inputs point much the same way, and what tells them apart is small
  // beside what they have in common. Before the first, a batch is seen from its own mean.
  void see_inputs(const float* x, Index ld, Index batch);

  // One active set for a batch x [batch][ld]: its labels, the hardest of each sample, the neurons
  // with most votes, random ones up to the floor. Rows ascend. Labels must be neurons' numbers. Throws std::invalid_argument
  // before the first build.
  void choose_shared(const OutputRows& outputs, Index batch, LabelRows labels,
                     const SamplingSettings& settings, std::uint64_t seed, Team& team,
                     std::vector<std::int32_t>& rows) const;

  // An active set for each sample: rows[offsets[b]] to rows[offsets[b + 1]], ascending.
  void choose_each(const float* x, Index ld, Index batch, LabelRows labels,
                   const SamplingSettings& settings, std::uint64_t seed, Team& team,
                   std::vector<std::int64_t>& offsets, std::vector<std::int32_t>& rows) const;

  // Scratch of one thread that chooses for one sample at a time. It must not outlive the index.
  class Search {
   public:
    explicit Search(const LshIndex& index);
    ~Search();
    Search(Search&&) noexcept;

    // Replaces `rows` by the sample's active rows; the same as choose_each with sample_seed.
    void one(const float* x, const std::int32_t* labels, Index label_count,
             const SamplingSettings& settings, std::uint64_t seed, std::vector<std::int32_t>& rows);

   private:
    struct Parts;
    std::unique_ptr<Parts> parts_;
  };
  // The seed by which choose_each chooses for a sample of a batch.
  static std::uint64_t sample_seed(std::uint64_t seed, Index sample);

  // Says that weights of these rows have changed; any thread, at any time.
  void mark_changed(const std::int32_t* rows, Index n);
  void mark_changed(const std::int64_t* rows, Index n);
  Index changed() const;

  // Hashes the marked neurons again and moves them, beside those who choose; returns how many.
  // Where most are marked, one table after another is emptied and filled again, which is faster.
  Index refresh(const WeightRows& weight, Team& team);

  // Draws new hash functions and puts all neurons into new tables.
  void rebuild(const WeightRows& weight, std::uint64_t seed, Team& team);

  // The bucket of each table for rows [n][ld]: codes[n][tables].
  void codes(const float* x, Index ld, Index n, std::uint32_t* codes) const;
  // The same for rows in compressed form, whose columns must ascend within [0, width).
  void codes_sparse(const std::int64_t* offsets, const std::int32_t* columns, const float* values,
                    Index n, std::uint32_t* codes) const;

  const IndexSettings& settings() const { return settings_; }
  // Tables, codes, marks and the scratch of choosing. While new tables are made there are two sets.
  std::size_t memory_bytes() const;
  Occupancy occupancy() const;
  Index buckets() const { return Index{1} << bucket_bits_; }

 private:
  using State = std::shared_ptr<HashedNeurons>;

  State current() const;
  State required() const;
  std::vector<float> input_centre(const float* x, Index ld, Index batch) const;
  HashSettings hash_settings(std::uint64_t seed) const;
  void make_tables(const WeightRows& weight, std::uint64_t seed, Team& team);
  void fill_tables(HashedNeurons& state, const WeightRows& weight, Team& team);
  void move_neurons(HashedNeurons& state, const std::vector<std::int32_t>& rows,
                    const WeightRows& weight, Team& team);
  void move_in_table(HashedNeurons& state, Index table, const std::int32_t* neurons, Index count,
                     const std::uint16_t* codes) const;
  Index neurons_to_move(const HashedNeurons& state, const std::vector<std::int32_t>& rows,
                        const WeightRows& weight) const;
  std::vector<std::int32_t> take_marked();
  std::vector<std::uint16_t> hash_batch(const HashedNeurons& state, const float* x, Index ld,
                                        Index batch, Team& team) const;

  IndexSettings settings_;
  int bucket_bits_ = 0;
  std::uint64_t functions_seed_;
  std::unique_ptr<std::uint8_t[]> marks_;  // one for each neuron, 1: changed

  mutable std::mutex current_mutex_;  // held for the moment of a copy or a swap
  State current_;
  std::mutex change_;  // one build, refresh or rebuild at a time

  mutable std::mutex inputs_mutex_;
  std::vector<float> inputs_mean_;  // empty before the first
  Index inputs_seen_ = 0;

  mutable std::mutex spare_mutex_;
  mutable std::vector<std::unique_ptr<BatchChooser>> spare_choosers_;
  mutable std::vector<std::unique_ptr<SampleChooser>> spare_samplers_;
};

}  // namespace mh
