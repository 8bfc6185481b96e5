// Groups the features of a batch, so that each touched row of the input layer is updated once.
#pragma once

#include <cstdint>
#include <vector>

#include "sparse/active_batch.h"

namespace mh {

// Not thread-safe. Keeps its memory from batch to batch.
class FeatureGrouping {
 public:
  // `features`: how many there are. Entries of a feature come in the order of the samples.
  void group(const SparseRows& x, Index samples, Index features);
  FeatureGroups groups() const {
    return {static_cast<Index>(features_.size()), features_.data(), starts_.data(),
            entries_.data()};
  }

 private:
  struct Item {
    std::uint32_t feature;
    FeatureEntry entry;
  };
  void sort_few();
  void sort_many(Index features);

  std::vector<Item> items_, other_;
  std::vector<std::int32_t> features_, starts_;
  std::vector<FeatureEntry> entries_;
};

}  // namespace mh
