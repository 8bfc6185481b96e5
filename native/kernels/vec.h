// A vector of floats as wide as the instruction set allows, with the few operations kernels need.
//
// Every kernel is written once against these names and compiled once per instruction set, each time
// inside its own namespace (MH_ISA), so that no function compiled for one set can be taken by the
// linker for another's. For the same reason kernel headers use no inline functions of the standard
// library. `+ - * /` work on Vec everywhere, as GCC and Clang define them for vector types.
#pragma once

#include <cstddef>
#include <cstdint>

#ifndef MH_ISA
#error "define MH_ISA (the namespace of this instruction set) before including vec.h"
#endif

#define MH_INLINE inline __attribute__((always_inline))
#define MH_UNROLL _Pragma("GCC unroll 16")

namespace mh {
using Index = std::ptrdiff_t;
}

#if defined(__AVX512F__)
#include "kernels/vec_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "kernels/vec_avx2.h"
#else
#include "kernels/vec_portable.h"
#endif

namespace mh::MH_ISA {

MH_INLINE Index smaller(Index a, Index b) { return a < b ? a : b; }

MH_INLINE Vec zero() { return splat(0.0f); }

// The first n lanes for any n: none below 1, all from kLanes on.
MH_INLINE Vec load_upto(const float* p, Index n) {
  if (n >= kLanes) return load(p);
  return n > 0 ? load_part(p, static_cast<int>(n)) : zero();
}
MH_INLINE void store_upto(float* p, Index n, Vec v) {
  if (n >= kLanes) {
    store(p, v);
  } else if (n > 0) {
    store_part(p, static_cast<int>(n), v);
  }
}

}  // namespace mh::MH_ISA
