// Which rows of a chunk changed at which of its versions: a client that has the others already is
// sent those alone.
//
// Kept for chunks whose updates name rows, in shared memory, where clients of the same machine look
// for themselves. An *era* is a stretch of a chunk's life on this server in which every change of
// its weights is noted by row. It ends when something else changes them (an array that is set, a
// dense update, a snapshot) and when the chunk's role or lease changes, for then a client may have
// read what never came to be. Eras have numbers that no other process draws, so that "what changed
// since version v of era e" is answered with rows only by the server that knows, and by any other
// with the whole chunk.
//
// The lane writes: weights, the rows' versions, the chunk's version, then the era where one begins.
// Readers look in the opposite order. Whoever sees a version therefore sees the rows' versions up to
// it, and the weights; what he reads beyond that has a higher version and comes again next time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace mh::server {

// Never 0, which stands for none, and below 2^63.
inline std::uint64_t new_era() {
  static std::atomic<std::uint64_t> next{[] {
    std::random_device random;
    return (std::uint64_t{random()} << 31) ^ random();
  }()};
  const std::uint64_t era = next.fetch_add(1, std::memory_order_relaxed) & ~(std::uint64_t{1} << 63);
  return era != 0 ? era : new_era();
}

class RowChanges {
 public:
  RowChanges() = default;
  // `versions` are zeros, one for each row; `era` is where the present one is told.
  RowChanges(std::uint64_t* versions, std::size_t rows, std::uint64_t* era)
      : versions_(versions), rows_(rows), era_(era) {}

  bool kept() const { return versions_ != nullptr; }

  // What changed until now is known to nobody.
  void begin_era() {
    if (kept()) __atomic_store_n(era_, new_era(), __ATOMIC_RELEASE);
  }
  // 0: changes are not noted by row.
  std::uint64_t era() const { return kept() ? __atomic_load_n(era_, __ATOMIC_RELAXED) : 0; }

  void note(std::size_t row, std::uint64_t version) {
    if (kept()) __atomic_store_n(versions_ + row, version, __ATOMIC_RELAXED);
  }
  // The rows that changed after a version of the present era.
  void since(std::uint64_t version, std::vector<std::uint32_t>& rows) const {
    rows.clear();
    for (std::size_t row = 0; row < rows_; ++row) {
      const std::uint64_t changed = __atomic_load_n(versions_ + row, __ATOMIC_RELAXED);
      if (changed > version) rows.push_back(static_cast<std::uint32_t>(row));
    }
  }

 private:
  std::uint64_t* versions_ = nullptr;
  std::size_t rows_ = 0;
  std::uint64_t* era_ = nullptr;
};

}  // namespace mh::server
