#include "sparse/hash_functions.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "kernels/dispatch.h"
#include "random.h"
#include "sparse/mixing.h"

namespace mh {
namespace {

constexpr int kBorrowAttempts = 100;  // as in SLIDE; a row with an entry in any bin finds it sooner

int bits_for(Index values) {
  int bits = 0;
  while ((Index{1} << bits) < values) ++bits;
  return bits;
}

int digit_bits(const HashSettings& s) {
  return s.kind == HashKind::kSimHash ? 1 : bits_for(std::min<Index>(s.bin, s.width));
}

Index share_of_width(const HashSettings& s) {
  const auto count = static_cast<Index>(std::lround(s.density * static_cast<double>(s.width)));
  return std::clamp<Index>(count, 1, s.width);
}

// Draws coordinates without returning them.
class Urn {
 public:
  Urn(Index width, Random& random)
      : random_(random), coordinates_(static_cast<std::size_t>(width)) {
    std::iota(coordinates_.begin(), coordinates_.end(), 0u);
  }
  Index left() const { return static_cast<Index>(coordinates_.size() - taken_); }
  void refill() { taken_ = 0; }
  std::uint32_t draw() {
    const std::size_t other = taken_ + below(random_.next(), coordinates_.size() - taken_);
    std::swap(coordinates_[taken_], coordinates_[other]);
    return coordinates_[taken_++];
  }

 private:
  Random& random_;
  std::vector<std::uint32_t> coordinates_;
  std::size_t taken_ = 0;
};

}  // namespace

int joined_bits(const HashSettings& settings) { return settings.hashes * digit_bits(settings); }

HashFunctions::HashFunctions(const HashSettings& settings) : settings_(settings) {
  const int joined = joined_bits(settings);
  bucket_bits_ = std::min(joined, settings.bucket_bits);
  join_ = {settings.tables, settings.hashes, digit_bits(settings),
           joined > bucket_bits_ ? 32 - bucket_bits_ : 0};
  if (settings.kind == HashKind::kSimHash) {
    draw_projections();
  } else {
    bin_ = static_cast<int>(std::min<Index>(settings.bin, settings.width));
    members_ = share_of_width(settings);
    draw_bins();
  }
}

// Coordinates of one bin differ, and bins of one permutation share none. So do the bins of a table
// where the width allows it: bins with coordinates in common often agree, and buckets fill unevenly.
void HashFunctions::draw_bins() {
  Random random(settings_.seed);
  Urn urn(settings_.width, random);
  offsets_.reserve(static_cast<std::size_t>(hashes() * bin_));
  const Index table = Index{bin_} * settings_.hashes;
  for (Index h = 0; h < hashes(); ++h) {
    const bool begins = h % settings_.hashes == 0 && table <= settings_.width;
    if (urn.left() < (begins ? table : bin_)) urn.refill();
    for (int i = 0; i < bin_; ++i) offsets_.push_back(urn.draw() * kHashBlock);
  }
}

// Ascending coordinates: sums of sparse rows then add up in the same order.
void HashFunctions::draw_projections() {
  Random random(settings_.seed);
  Urn urn(settings_.width, random);
  const Index count = share_of_width(settings_);
  starts_.push_back(0);
  std::vector<std::uint32_t> signs[2];
  for (Index h = 0; h < hashes(); ++h) {
    urn.refill();
    for (Index i = 0; i < count; ++i) signs[random.next() >> 63].push_back(urn.draw() * kHashBlock);
    for (std::vector<std::uint32_t>& sign : signs) {
      std::sort(sign.begin(), sign.end());
      offsets_.insert(offsets_.end(), sign.begin(), sign.end());
      starts_.push_back(static_cast<std::uint32_t>(offsets_.size()));
      sign.clear();
    }
  }
}

HashEntries HashFunctions::entries() const {
  switch (settings_.kind) {
    case HashKind::kSimHash:
      return HashEntries::kAll;
    case HashKind::kDwta:
      return HashEntries::kNonZero;
    default:
      return HashEntries::kNumbers;
  }
}

HashFunctions::Scratch::Scratch(const HashFunctions& functions)
    : block_(static_cast<std::size_t>(functions.width() * kHashBlock)),
      digits_(static_cast<std::size_t>(functions.hashes() * kHashBlock)),
      borrowed_(digits_.size()),
      codes_(static_cast<std::size_t>(functions.tables() * kHashBlock)) {}

void HashFunctions::hash(const float* const* rows, Index count, Scratch& scratch,
                         const float* centre, std::uint16_t* codes, Index stride) const {
  for (Index first = 0; first < count; first += kHashBlock) {
    const int lanes = static_cast<int>(std::min<Index>(kHashBlock, count - first));
    hash_block(rows + first, lanes, centre, scratch);
    for (Index table = 0; table < tables(); ++table) {
      std::memcpy(codes + table * stride + first, scratch.codes_.data() + table * kHashBlock,
                  static_cast<std::size_t>(lanes) * sizeof *codes);
    }
  }
}

void HashFunctions::hash_block(const float* const* rows, int count, const float* centre,
                               Scratch& scratch) const {
  const KernelTable& kernel = kernels();
  float* block = scratch.block_.data();
  std::uint8_t* digits = scratch.digits_.data();
  kernel.lay_block(width(), rows, count, entries(), block);
  if (settings_.kind == HashKind::kSimHash) {
    for (Index k = 0; centre && k < width(); ++k) {
      for (int lane = 0; lane < kHashBlock; ++lane) block[k * kHashBlock + lane] -= centre[k];
    }
    kernel.hash_signs({hashes(), starts_.data(), offsets_.data()}, block, count, digits);
  } else {
    if (settings_.kind == HashKind::kMinHash) kernel.keep_largest(width(), members_, count, block);
    kernel.hash_winners({hashes(), bin_, offsets_.data()}, block, count, digits);
    if (std::memchr(digits, kEmptyBin, scratch.digits_.size())) {
      fill_empty_bins(kHashBlock, digits, scratch.borrowed_.data());
      digits = scratch.borrowed_.data();
    }
  }
  kernel.join_digits(join_, digits, scratch.codes_.data());
}

// Digits [hashes][lanes]. An empty bin takes the digit of the first bin that is not, in an order
// that depends on the bin alone (optimal densification: Shrivastava 2017).
void HashFunctions::fill_empty_bins(Index lanes, const std::uint8_t* digits,
                                    std::uint8_t* filled) const {
  std::memcpy(filled, digits, static_cast<std::size_t>(hashes() * lanes));
  for (Index h = 0; h < hashes(); ++h) {
    for (Index lane = 0; lane < lanes; ++lane) {
      std::uint8_t& digit = filled[h * lanes + lane];
      for (int attempt = 0; digit == kEmptyBin && attempt < kBorrowAttempts; ++attempt) {
        const auto draw = mixed(static_cast<std::uint64_t>(h), static_cast<std::uint64_t>(attempt));
        const auto other = static_cast<Index>(below(draw, static_cast<std::uint64_t>(hashes())));
        digit = digits[other * lanes + lane];
      }
      if (digit == kEmptyBin) digit = 0;
    }
  }
}

const HashFunctions::Readers& HashFunctions::readers() const {
  std::call_once(readers_once_, [this] {
    auto readers = std::make_unique<Readers>();
    readers->starts.assign(static_cast<std::size_t>(width()) + 1, 0);
    for (const std::uint32_t offset : offsets_) ++readers->starts[offset / kHashBlock + 1];
    std::partial_sum(readers->starts.begin(), readers->starts.end(), readers->starts.begin());
    readers->uses.resize(offsets_.size());
    std::vector<std::uint32_t> next(readers->starts.begin(), readers->starts.end() - 1);
    const auto add = [&](std::size_t at, Index hash, Index place) {
      readers->uses[next[offsets_[at] / kHashBlock]++] = {static_cast<std::uint32_t>(hash),
                                                          static_cast<std::uint32_t>(place)};
    };
    if (settings_.kind == HashKind::kSimHash) {
      for (Index i = 0; i < 2 * hashes(); ++i) {
        for (std::size_t at = starts_[i]; at < starts_[i + 1]; ++at) add(at, i / 2, i % 2);
      }
    } else {
      for (std::size_t at = 0; at < offsets_.size(); ++at) {
        const auto place = static_cast<Index>(at);
        add(at, place / bin_, place % bin_);
      }
    }
    readers_ = std::move(readers);
  });
  return *readers_;
}

void HashFunctions::hash_sparse(const SparseRow& row, std::uint16_t* codes) const {
  std::vector<std::uint8_t> digits(static_cast<std::size_t>(hashes()));
  if (settings_.kind == HashKind::kSimHash) {
    sparse_signs(row, digits.data());
  } else {
    sparse_winners(row, digits.data());
    if (std::memchr(digits.data(), kEmptyBin, digits.size())) {
      std::vector<std::uint8_t> filled(digits.size());
      fill_empty_bins(1, digits.data(), filled.data());
      digits.swap(filled);
    }
  }
  std::vector<std::uint8_t> lanes(digits.size() * kHashBlock);
  for (std::size_t h = 0; h < digits.size(); ++h) lanes[h * kHashBlock] = digits[h];
  std::vector<std::uint16_t> joined(static_cast<std::size_t>(tables() * kHashBlock));
  kernels().join_digits(join_, lanes.data(), joined.data());
  for (Index table = 0; table < tables(); ++table) codes[table] = joined[table * kHashBlock];
}

void HashFunctions::sparse_signs(const SparseRow& row, std::uint8_t* digits) const {
  const Readers& all = readers();
  std::vector<float> sums(static_cast<std::size_t>(2 * hashes()));
  for (Index i = 0; i < row.entries; ++i) {
    const float value = row.values ? row.values[i] : 1.0f;
    for (std::uint32_t u = all.starts[row.columns[i]]; u < all.starts[row.columns[i] + 1]; ++u) {
      sums[2 * all.uses[u].hash + all.uses[u].place] += value;
    }
  }
  for (Index h = 0; h < hashes(); ++h) digits[h] = sums[2 * h] > sums[2 * h + 1] ? 1 : 0;
}

// MinHash: what an entry must exceed to be a member of the set.
float HashFunctions::member_threshold(const SparseRow& row) const {
  std::vector<float> positive;
  for (Index i = 0; i < row.entries; ++i) {
    const float value = row.values ? row.values[i] : 1.0f;
    if (value > 0.0f) positive.push_back(value);
  }
  if (static_cast<Index>(positive.size()) < members_) return 0.0f;
  const auto last = positive.begin() + (members_ - 1);
  std::nth_element(positive.begin(), last, positive.end(), std::greater<>());
  return std::nextafter(*last, 0.0f);
}

void HashFunctions::sparse_winners(const SparseRow& row, std::uint8_t* digits) const {
  const Readers& all = readers();
  const bool sets = settings_.kind == HashKind::kMinHash;
  const float threshold = sets ? member_threshold(row) : 0.0f;
  std::vector<float> best(static_cast<std::size_t>(hashes()), kNoEntry);
  std::vector<std::uint64_t> written(best.size());  // positions of the bin that the row gives
  std::memset(digits, kEmptyBin, best.size());
  for (Index i = 0; i < row.entries; ++i) {
    float value = row.values ? row.values[i] : 1.0f;
    if (value == 0.0f) continue;
    if (std::isnan(value)) value = kNoEntry;
    if (sets) value = value > threshold ? 1.0f : kNoEntry;
    for (std::uint32_t u = all.starts[row.columns[i]]; u < all.starts[row.columns[i] + 1]; ++u) {
      const auto [hash, place] = all.uses[u];
      written[hash] |= std::uint64_t{1} << place;
      if (value > best[hash] || (value == best[hash] && value > kNoEntry && place < digits[hash])) {
        best[hash] = value;
        digits[hash] = static_cast<std::uint8_t>(place);
      }
    }
  }
  if (settings_.kind != HashKind::kWta) return;
  // The zeros that are not written compete too: the first of them beats what is negative.
  const std::uint64_t whole = bin_ == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bin_) - 1;
  for (Index h = 0; h < hashes(); ++h) {
    if (best[h] < 0.0f && written[h] != whole) {
      digits[h] = static_cast<std::uint8_t>(__builtin_ctzll(~written[h]));
    }
  }
}

std::size_t HashFunctions::bytes() const {
  return (offsets_.size() + starts_.size()) * sizeof(std::uint32_t);
}

}  // namespace mh
