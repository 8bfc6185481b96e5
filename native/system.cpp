#include "system.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace mh {

void flush_denormals() {
#if defined(__x86_64__)
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
#elif defined(__aarch64__)
  std::uint64_t control;
  __asm__ __volatile__("mrs %0, fpcr" : "=r"(control));
  control |= std::uint64_t{1} << 24;  // FZ
  __asm__ __volatile__("msr fpcr, %0" : : "r"(control));
#endif
}

void keep_freed_memory() {
#if defined(__GLIBC__)
  constexpr int kOneGigabyte = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kOneGigabyte);
  mallopt(M_TRIM_THRESHOLD, kOneGigabyte);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

std::int64_t fetch_add(std::int64_t* counter, std::int64_t amount) {
  return __atomic_fetch_add(counter, amount, __ATOMIC_ACQ_REL);
}

}  // namespace mh
