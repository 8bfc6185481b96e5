// The hash functions of all tables of an index: similar rows are likely to fall into equal buckets.
//
// Four families, all drawn from a seed and never changed afterwards:
//   SimHash   a digit is the sign of a sum of random coordinates, each with a random sign: equal
//             with probability 1 - angle / pi (Charikar 2002; sparse projections: Li et al. 2006)
//   WTA       the position of the largest of `bin` random coordinates: depends on the order of the
//             coordinates only (Yagnik et al. 2011)
//   DWTA      the same among coordinates that are not zero; a bin without any borrows the digit of
//             another bin, so that sparse rows hash well too (Chen and Shrivastava 2018)
//   MinHash   a row is taken as the set of its largest positive coordinates; a digit is the first
//             member of the set in a bin of a random permutation, empty bins borrow: equal with
//             about the share of members in common (Shrivastava 2017)
// The bins of WTA, DWTA and MinHash are cut from random permutations of all coordinates.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/kernel_table.h"

namespace mh {

enum class HashKind { kSimHash, kWta, kDwta, kMinHash };

struct HashSettings {
  HashKind kind;
  Index width;
  int hashes, tables;
  int bin;           // not SimHash: coordinates that compete
  double density;    // SimHash: share of coordinates in a sum; MinHash: share that makes the set
  int bucket_bits;   // at most this many bits number a bucket; longer codes are folded
  std::uint64_t seed;
};

// Bits that the joined digits of a table have, before folding.
int joined_bits(const HashSettings& settings);

// A row in compressed form; columns ascending, each once. values null: all ones.
struct SparseRow {
  Index entries;
  const std::int32_t* columns;
  const float* values;
};

class HashFunctions {
 public:
  // The settings are the index's, which has checked them.
  explicit HashFunctions(const HashSettings& settings);

  // Memory that one thread needs to hash.
  class Scratch {
   public:
    explicit Scratch(const HashFunctions& functions);

   private:
    friend class HashFunctions;
    std::vector<float> block_;
    std::vector<std::uint8_t> digits_, borrowed_;
    std::vector<std::uint16_t> codes_;
  };

  // codes[table * stride + i] for each of `count` rows. `centre` is null, or [width]: SimHash takes
  // directions as seen from there (centred()).
  void hash(const float* const* rows, Index count, Scratch& scratch, const float* centre,
            std::uint16_t* codes, Index stride) const;

  // Whether a row's codes depend on where it is seen from. The order of coordinates, which the
  // other families go by, is that of the row itself.
  bool centred() const { return settings_.kind == HashKind::kSimHash; }

  // The same codes as the row written out with its zeros would have; codes[table].
  void hash_sparse(const SparseRow& row, std::uint16_t* codes) const;

  Index width() const { return settings_.width; }
  Index tables() const { return settings_.tables; }
  int bucket_bits() const { return bucket_bits_; }
  Index buckets() const { return Index{1} << bucket_bits_; }
  std::size_t bytes() const;

 private:
  // Which hash functions read a coordinate, and where they have it: bins hold a position, sums 0
  // for a plus and 1 for a minus.
  struct Readers {
    struct Use {
      std::uint32_t hash, place;
    };
    std::vector<std::uint32_t> starts;
    std::vector<Use> uses;
  };

  Index hashes() const { return Index{settings_.hashes} * settings_.tables; }
  HashEntries entries() const;
  void draw_bins();
  void draw_projections();
  void hash_block(const float* const* rows, int count, const float* centre, Scratch& scratch) const;
  void fill_empty_bins(Index lanes, const std::uint8_t* digits, std::uint8_t* filled) const;
  const Readers& readers() const;
  void sparse_signs(const SparseRow& row, std::uint8_t* digits) const;
  void sparse_winners(const SparseRow& row, std::uint8_t* digits) const;
  float member_threshold(const SparseRow& row) const;

  HashSettings settings_;
  int bin_ = 1;
  int bucket_bits_;
  Index members_ = 0;  // MinHash: how many make the set
  HashDigits join_{};
  std::vector<std::uint32_t> offsets_, starts_;
  mutable std::once_flag readers_once_;
  mutable std::unique_ptr<Readers> readers_;  // only for sparse rows
};

}  // namespace mh
