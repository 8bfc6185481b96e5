// Vec for any machine that GCC or Clang knows: 4 floats, compiled to SSE2, NEON or plain scalars.
// Included by vec.h only.
#pragma once

namespace mh::MH_ISA {

typedef float Vec __attribute__((vector_size(16)));
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
MH_INLINE Vec larger(Vec a, Vec b) { return a > b ? a : b; }  // b where either is NaN
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

// out[i] += the sum of the lanes of v[i].
MH_INLINE void add_sums4(const Vec* v, float* out) {
  for (int i = 0; i < 4; ++i) out[i] += sum(v[i]);
}

// The sum of the lanes in double precision.
MH_INLINE double sum_wide(Vec v) {
  return (static_cast<double>(v[0]) + v[1]) + (static_cast<double>(v[2]) + v[3]);
}

typedef std::int32_t Mask __attribute__((vector_size(16)));
MH_INLINE Mask above(Vec a, Vec b) { return a > b; }
MH_INLINE Mask same(Vec a, Vec b) { return a == b; }
MH_INLINE Vec pick(Mask m, Vec yes, Vec no) { return m ? yes : no; }
MH_INLINE Vec keep(Mask m, Vec v) { return (Vec)(m & (Mask)v); }  // v or zero

// Elements 0, 2, 4... and 1, 3, 5... of a followed by b; interleave is the way back.
MH_INLINE void deinterleave(Vec a, Vec b, Vec& even, Vec& odd) {
  even = Vec{a[0], a[2], b[0], b[2]};
  odd = Vec{a[1], a[3], b[1], b[3]};
}
MH_INLINE void interleave(Vec even, Vec odd, Vec& a, Vec& b) {
  a = Vec{even[0], odd[0], even[1], odd[1]};
  b = Vec{even[2], odd[2], even[3], odd[3]};
}

// Whole numbers 0 to 127 as bytes, kLanes of them.
MH_INLINE void store_bytes(std::uint8_t* p, Vec v) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::uint8_t>(v[i]);
}
MH_INLINE Vec load_bytes(const std::uint8_t* p) {
  return Vec{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]),
             static_cast<float>(p[3])};
}

}  // namespace mh::MH_ISA
