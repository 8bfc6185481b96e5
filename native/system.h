// Settings of the process and the thread that training speed depends on, and the shared counter.
#pragma once

#include <cstdint>

namespace mh {

// Denormal results and inputs count as zero in the calling thread. Late in training gradients
// shrink into denormals, and each one costs a convolution over a hundred cycles.
void flush_denormals();

// The same for the calling thread as long as the object lives.
class DenormalsFlushed {
 public:
  DenormalsFlushed();
  ~DenormalsFlushed();
  DenormalsFlushed(const DenormalsFlushed&) = delete;
  DenormalsFlushed& operator=(const DenormalsFlushed&) = delete;

 private:
  std::uint64_t before_ = 0;
};

// Large freed buffers stay with the process instead of being unmapped and faulted in again.
void keep_freed_memory();

// Adds atomically, also against other processes that share the memory; returns the old value.
std::int64_t fetch_add(std::int64_t* counter, std::int64_t amount);

}  // namespace mh
