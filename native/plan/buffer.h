// Memory for activations: aligned to a cache line, zeroed, allocated once and never resized.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "kernels/kernel_table.h"

namespace mh {

inline Index round_up(Index n, Index step) { return (n + step - 1) / step * step; }

class Buffer {
 public:
  Buffer() = default;
  // At least one float, plus slack behind the last.
  explicit Buffer(Index floats) {
    const auto bytes = static_cast<std::size_t>(round_up(floats + kSlack, 16)) * sizeof(float);
    data_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (!data_) throw std::bad_alloc();
    std::memset(data_.get(), 0, bytes);
  }
  float* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> data_;
};

}  // namespace mh
