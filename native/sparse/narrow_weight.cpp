#include "sparse/narrow_weight.h"

#include <algorithm>

namespace mh {
namespace {

constexpr Index kRowsAtOnce = 1024;

}  // namespace

NarrowWeight::NarrowWeight(Index rows, Index width)
    : rows_(rows),
      width_(width),
      values_(static_cast<std::size_t>(rows * width)),
      changed_(std::make_unique<std::uint8_t[]>(static_cast<std::size_t>(rows))) {}

void NarrowWeight::take(const float* weight, const KernelTable& kernels, Team& team) {
  for_units(team, units_of(rows_, kRowsAtOnce), [&](Index unit, int) {
    const Index first = unit * kRowsAtOnce, count = std::min(kRowsAtOnce, rows_ - first);
    std::fill_n(&changed_[static_cast<std::size_t>(first)], count, std::uint8_t{0});
    kernels.to_bfloat16(count * width_, weight + first * width_,
                        reinterpret_cast<std::uint8_t*>(values_.data() + first * width_));
  });
}

void NarrowWeight::write_back(float* weight, const KernelTable& kernels, Team& team) {
  for_units(team, units_of(rows_, kRowsAtOnce), [&](Index unit, int) {
    const Index first = unit * kRowsAtOnce, end = std::min(first + kRowsAtOnce, rows_);
    for (Index row = first; row < end; ++row) {
      std::uint8_t& changed = changed_[static_cast<std::size_t>(row)];
      if (!changed) continue;
      changed = 0;
      kernels.from_bfloat16(width_,
                            reinterpret_cast<const std::uint8_t*>(values_.data() + row * width_),
                            weight + row * width_);
    }
  });
}

}  // namespace mh
