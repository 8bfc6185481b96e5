#include "sparse/feature_groups.h"

#include <algorithm>
#include <array>
#include <utility>

namespace mh {
namespace {

constexpr int kDigitBits = 11;
constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;
constexpr std::size_t kFew = 512;  // below this the tables of a radix sort cost more than they save

}  // namespace

void FeatureGrouping::group(const SparseRows& x, Index samples, Index features) {
  const std::int64_t first = x.offsets[0];
  items_.resize(static_cast<std::size_t>(x.offsets[samples] - first));
  for (Index b = 0; b < samples; ++b) {
    for (std::int64_t j = x.offsets[b]; j < x.offsets[b + 1]; ++j) {
      items_[static_cast<std::size_t>(j - first)] = {
          static_cast<std::uint32_t>(x.columns[j]),
          {static_cast<std::int32_t>(b), x.values ? x.values[j] : 1.0f}};
    }
  }
  items_.size() < kFew ? sort_few() : sort_many(features);
  features_.clear();
  starts_.clear();
  entries_.resize(items_.size());
  for (std::size_t i = 0; i < items_.size(); ++i) {
    entries_[i] = items_[i].entry;
    if (i && items_[i].feature == items_[i - 1].feature) continue;
    features_.push_back(static_cast<std::int32_t>(items_[i].feature));
    starts_.push_back(static_cast<std::int32_t>(i));
  }
  starts_.push_back(static_cast<std::int32_t>(items_.size()));
}

void FeatureGrouping::sort_few() {
  std::stable_sort(items_.begin(), items_.end(),
                   [](const Item& a, const Item& b) { return a.feature < b.feature; });
}

// Radix sort from the lowest digit on: stable, which keeps the order of the samples.
void FeatureGrouping::sort_many(Index features) {
  other_.resize(items_.size());
  for (int shift = 0; shift == 0 || (features - 1) >> shift; shift += kDigitBits) {
    std::array<std::uint32_t, kDigits> places{};
    for (const Item& item : items_) ++places[item.feature >> shift & (kDigits - 1)];
    std::uint32_t place = 0;
    for (std::uint32_t& count : places) place += std::exchange(count, place);
    for (const Item& item : items_) other_[places[item.feature >> shift & (kDigits - 1)]++] = item;
    items_.swap(other_);
  }
}

}  // namespace mh
