// A server's weights in memory that this machine's processes share: a pull is a copy.
//
// The server applies updates while the copy runs, without locks: some values may be newer than the
// version that was read before them, as the next pull would have brought them anyway. A float is
// never torn on the machines we run on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
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
        bytes_ - version < sizeof(std::uint64_t) || version % sizeof(std::uint64_t) != 0) {
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

  // Returns the version read before the values.
  std::uint64_t copy(std::uint32_t chunk, std::size_t floats, float* out) const {
    const Place& at = places_.at(chunk);
    const auto* version = reinterpret_cast<const std::uint64_t*>(memory_ + at.version);
    const std::uint64_t seen = __atomic_load_n(version, __ATOMIC_ACQUIRE);
    if (floats > 0) std::memcpy(out, memory_ + at.weights, floats * sizeof(float));
    return seen;
  }

 private:
  struct Place {
    std::uint64_t weights, version;
  };
  const std::uint8_t* memory_;
  std::size_t bytes_;
  std::unordered_map<std::uint32_t, Place> places_;
};

}  // namespace mh::client
