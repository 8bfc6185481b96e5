#include "system.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace mh {

namespace {

// The register that says how this thread computes with denormals, and its bits that flush them.
#if defined(__x86_64__)
constexpr std::uint64_t kFlush = 0x8000 | 0x0040;  // results, and inputs
std::uint64_t control() { return _mm_getcsr(); }
void set_control(std::uint64_t bits) { _mm_setcsr(static_cast<unsigned>(bits)); }
#elif defined(__aarch64__)
constexpr std::uint64_t kFlush = std::uint64_t{1} << 24;  // FZ
std::uint64_t control() {
  std::uint64_t bits;
  __asm__ __volatile__("mrs %0, fpcr" : "=r"(bits));
  return bits;
}
void set_control(std::uint64_t bits) { __asm__ __volatile__("msr fpcr, %0" : : "r"(bits)); }
#else
constexpr std::uint64_t kFlush = 0;
std::uint64_t control() { return 0; }
void set_control(std::uint64_t) {}
#endif

}  // namespace

void flush_denormals() { set_control(control() | kFlush); }

DenormalsFlushed::DenormalsFlushed() : before_(control()) { set_control(before_ | kFlush); }
DenormalsFlushed::~DenormalsFlushed() { set_control(before_); }

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
