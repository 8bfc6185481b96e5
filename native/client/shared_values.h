// A server's weights in memory that this machine's processes share: a pull is a copy.
//
// Each chunk has a line of its own: u64 version, then u32 the lease under which the server is its
// primary, 0 when it is not. Leases only rise, so values between two looks at the same one are the
// primary's.
//
// Where the server notes changes by row, u64 the era is 24 bytes behind the version, and a u64
// version of each row lies in the first line behind the weights.
//
// The server applies updates while the copy runs, without locks: some values may be newer than the
// version that was read before them, as the next pull would have brought them anyway. A float is
// never torn on the machines we run on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace mh::client {

class SharedValues {
 public:
  SharedValues(const std::uint8_t* memory, std::size_t bytes) : memory_(memory), bytes_(bytes) {}

  bool given() const { return memory_ != nullptr; }

  void place(std::uint32_t chunk, std::uint64_t weights, std::uint64_t version) {
    if (weights > bytes_ || weights % sizeof(float) != 0 || version > bytes_ ||
        bytes_ - version < sizeof(Line) || version % sizeof(std::uint64_t) != 0) {
      throw std::invalid_argument("Chunk " + std::to_string(chunk) + " is placed at " +
                                  std::to_string(weights) + " and its version at " +
                                  std::to_string(version) + " of " + std::to_string(bytes_) +
                                  " bytes.");
    }
    places_[chunk] = {weights, version};
  }

  // Throws std::invalid_argument unless a copy of so many floats stays within the memory.
  void require(std::uint32_t chunk, std::size_t floats) const {
    const auto at = places_.find(chunk);
    if (at == places_.end()) {
      throw std::invalid_argument("Nothing says where chunk " + std::to_string(chunk) +
                                  " lies in the server's memory; call places() first.");
    }
    if (floats > (bytes_ - at->second.weights) / sizeof(float)) {
      throw std::invalid_argument("Chunk " + std::to_string(chunk) + " with " +
                                  std::to_string(floats) +
                                  " floats reaches beyond the server's memory.");
    }
  }

  // What somebody has of a chunk whose changes are noted by row (server/row_changes.h).
  struct Known {
    std::uint64_t era, version;
  };
  struct Copied {
    Known now;
    std::size_t rows;
  };

  // What `require` is for a chunk whose changes the server notes by row.
  void require_rows(std::uint32_t chunk, std::size_t rows, std::size_t row_floats) const {
    require(chunk, rows * row_floats);
    const Place& at = places_.at(chunk);
    const std::uint64_t versions = row_versions_at(at, rows * row_floats);
    if (bytes_ - at.version >= kEraAt + sizeof(std::uint64_t) && versions <= bytes_ &&
        rows <= (bytes_ - versions) / sizeof(std::uint64_t)) {
      return;
    }
    throw std::invalid_argument("The versions of " + std::to_string(rows) + " rows of chunk " +
                                std::to_string(chunk) + " reach beyond the server's memory.");
  }

  // Copies the rows that changed since that version of that era, or all; `changed` receives 1 for
  // each that was copied. None as for `copy`.
  std::optional<Copied> copy_rows(std::uint32_t chunk, std::uint32_t lease, std::size_t rows,
                                  std::size_t row_floats, const Known& since, float* out,
                                  std::uint8_t* changed) const {
    const Place& at = places_.at(chunk);
    const auto* line = reinterpret_cast<const Line*>(memory_ + at.version);
    const auto* era = reinterpret_cast<const std::uint64_t*>(memory_ + at.version + kEraAt);
    const auto* versions = reinterpret_cast<const std::uint64_t*>(
        memory_ + row_versions_at(at, rows * row_floats));
    const auto* weights = reinterpret_cast<const float*>(memory_ + at.weights);
    if (!held(*line, lease)) return std::nullopt;
    const std::uint64_t now = __atomic_load_n(era, __ATOMIC_ACQUIRE);
    const std::uint64_t version = __atomic_load_n(&line->version, __ATOMIC_ACQUIRE);
    std::size_t copied = 0;
    if (now == 0 || now != since.era) {
      std::memcpy(out, weights, rows * row_floats * sizeof(float));
      std::memset(changed, 1, rows);
      copied = rows;
    } else if (version != since.version) {
      for (std::size_t row = 0; row < rows; ++row) {
        if (__atomic_load_n(versions + row, __ATOMIC_RELAXED) <= since.version) continue;
        std::memcpy(out + row * row_floats, weights + row * row_floats,
                    row_floats * sizeof(float));
        changed[row] = 1;
        ++copied;
      }
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (!held(*line, lease)) return std::nullopt;
    return Copied{{now, version}, copied};
  }

  // The version read before the values; none if the server does not hold the chunk under this
  // lease (0: under any) from before the copy until after it.
  std::optional<std::uint64_t> copy(std::uint32_t chunk, std::uint32_t lease, std::size_t floats,
                                    float* out) const {
    const Place& at = places_.at(chunk);
    const auto* line = reinterpret_cast<const Line*>(memory_ + at.version);
    if (!held(*line, lease)) return std::nullopt;
    const std::uint64_t version = __atomic_load_n(&line->version, __ATOMIC_ACQUIRE);
    if (floats > 0) std::memcpy(out, memory_ + at.weights, floats * sizeof(float));
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (!held(*line, lease)) return std::nullopt;
    return version;
  }

 private:
  struct Line {
    std::uint64_t version;
    std::uint32_t lease;
    std::uint32_t unused;
  };
  static bool held(const Line& line, std::uint32_t lease) {
    return lease == 0 || __atomic_load_n(&line.lease, __ATOMIC_ACQUIRE) == lease;
  }

  struct Place {
    std::uint64_t weights, version;
  };
  static constexpr std::size_t kEraAt = 24;  // behind the version
  static constexpr std::size_t kLine = 64;
  static std::uint64_t row_versions_at(const Place& at, std::size_t floats) {
    return (at.weights + floats * sizeof(float) + kLine - 1) / kLine * kLine;
  }

  const std::uint8_t* memory_;
  std::size_t bytes_;
  std::unordered_map<std::uint32_t, Place> places_;
};

}  // namespace mh::client
