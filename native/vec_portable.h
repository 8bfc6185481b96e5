// Vec for any machine that GCC or Clang knows: 4 floats, compiled to SSE2, NEON or plain scalars.
// Included by vec.h only.
#pragma once

namespace mh::MH_ISA {

typedef float Vec __attribute__((vector_size(16)));
typedef std::int32_t IntVec __attribute__((vector_size(16)));
constexpr int kLanes = 4;

MH_INLINE Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
MH_INLINE void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }
MH_INLINE Vec splat(float x) { return Vec{x, x, x, x}; }
MH_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
MH_INLINE Vec root(Vec v) {
  return Vec{__builtin_sqrtf(v[0]), __builtin_sqrtf(v[1]), __builtin_sqrtf(v[2]),
             __builtin_sqrtf(v[3])};
}
MH_INLINE Vec larger(Vec a, Vec b) { return a > b ? a : b; }
MH_INLINE Vec lesser(Vec a, Vec b) { return a < b ? a : b; }

// The first n lanes, 0 <= n <= kLanes; the others are zero and not touched in memory.
MH_INLINE Vec load_part(const float* p, int n) {
  Vec v = {0, 0, 0, 0};
  for (int i = 0; i < n; ++i) v[i] = p[i];
  return v;
}
MH_INLINE void store_part(float* p, int n, Vec v) {
  for (int i = 0; i < n; ++i) p[i] = v[i];
}

MH_INLINE float sum(Vec v) { return (v[0] + v[1]) + (v[2] + v[3]); }

// The sum of the lanes in double precision.
MH_INLINE double sum_wide(Vec v) {
  return (static_cast<double>(v[0]) + v[1]) + (static_cast<double>(v[2]) + v[3]);
}

}  // namespace mh::MH_ISA
