// The weight of a wide layer as bfloat16, which a trainer works on in place of the layer's own.
//
// The layer keeps its float32 weight: tables are made from it, it is evaluated and saved. After a
// piece of training the rows that have moved are written back to it, so that whoever looks between
// two pieces sees what was trained; and the values there are those of the bfloat16, exactly.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "sparse/huge_array.h"
#include "sparse/units.h"

namespace mh {

class NarrowWeight {
 public:
  NarrowWeight(Index rows, Index width);

  std::uint16_t* data() const { return values_.data(); }

  // Takes the values of a float32 weight, each rounded to the nearest.
  void take(const float* weight, const KernelTable& kernels, Team& team);

  // Says that these rows have moved; any thread.
  void mark_changed(const std::int32_t* rows, Index count) {
    for (Index i = 0; i < count; ++i) {
      __atomic_store_n(&changed_[static_cast<std::size_t>(rows[i])], 1, __ATOMIC_RELAXED);
    }
  }

  void mark_all_changed() { std::fill_n(changed_.get(), rows_, std::uint8_t{1}); }

  // Writes the rows that have moved since the last time to the float32 weight.
  void write_back(float* weight, const KernelTable& kernels, Team& team);

 private:
  const Index rows_, width_;
  HugeArray<std::uint16_t> values_;
  std::unique_ptr<std::uint8_t[]> changed_;  // one for each row
};

}  // namespace mh
