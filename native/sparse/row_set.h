// A set of row numbers that gives them back in ascending order, without sorting.
//
// One bit a row, and one bit for each word of 64 rows that has any: adding is two writes, and
// emptying visits only words that hold something.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernel_table.h"

namespace mh {

class RowSet {
 public:
  explicit RowSet(Index rows)
      : words_(static_cast<std::size_t>(rows / 64 + 1)), used_(words_.size() / 64 + 1) {}

  Index size() const { return size_; }

  // Whether the row is new.
  bool add(std::int32_t row) {
    const auto at = static_cast<std::size_t>(row) / 64;
    const std::uint64_t bit = std::uint64_t{1} << (row % 64);
    if (words_[at] & bit) return false;
    words_[at] |= bit;
    used_[at / 64] |= std::uint64_t{1} << (at % 64);
    ++size_;
    return true;
  }

  // Appends the rows, ascending, and empties the set.
  void drain(std::vector<std::int32_t>& rows) {
    rows.reserve(rows.size() + static_cast<std::size_t>(size_));
    for (std::size_t i = 0; i < used_.size(); ++i) {
      for (std::uint64_t used = used_[i]; used; used &= used - 1) {
        const std::size_t at = i * 64 + static_cast<std::size_t>(__builtin_ctzll(used));
        for (std::uint64_t word = words_[at]; word; word &= word - 1) {
          rows.push_back(static_cast<std::int32_t>(at * 64) + __builtin_ctzll(word));
        }
        words_[at] = 0;
      }
      used_[i] = 0;
    }
    size_ = 0;
  }

  std::size_t bytes() const { return (words_.size() + used_.size()) * sizeof(std::uint64_t); }

 private:
  std::vector<std::uint64_t> words_, used_;
  Index size_ = 0;
};

}  // namespace mh
