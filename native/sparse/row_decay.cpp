#include "sparse/row_decay.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mh {
namespace {

constexpr Index kRowsAtOnce = 128;
constexpr double kLeastKept = 1e-30;  // of a step with a rate beyond reason

}  // namespace

void RowDecay::count_step(double rate) {
  total_ += std::log(std::max(kLeastKept, 1.0 - rate * decay_));
}

void RowDecay::make_good(const KernelTable& kernels, const RowArrays& weight,
                         const RowArrays& bias, const std::int32_t* rows, Index count) {
  std::int32_t due[kRowsAtOnce];
  float kept[kRowsAtOnce];
  for (Index first = 0; first < count; first += kRowsAtOnce) {
    Index some = 0;
    for (Index i = first; i < std::min(first + kRowsAtOnce, count); ++i) {
      double before, now = total_;
      __atomic_exchange(&made_good_[static_cast<std::size_t>(rows[i])], &now, &before,
                        __ATOMIC_RELAXED);
      if (before == now) continue;
      due[some] = rows[i];
      kept[some++] = static_cast<float>(std::exp(now - before));
    }
    kernels.scale_rows(weight, due, some, kept);
    if (bias.weight) kernels.scale_rows(bias, due, some, kept);
  }
}

void RowDecay::make_all_good(const KernelTable& kernels, const RowArrays& weight,
                             const RowArrays& bias, Team& team) {
  const auto rows = static_cast<Index>(made_good_.size());
  for_units(team, units_of(rows, kRowsAtOnce), [&](Index unit, int) {
    std::int32_t some[kRowsAtOnce];
    const Index first = unit * kRowsAtOnce, count = std::min(kRowsAtOnce, rows - first);
    std::iota(some, some + count, static_cast<std::int32_t>(first));
    make_good(kernels, weight, bias, some, count);
  });
}

}  // namespace mh
