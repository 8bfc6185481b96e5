// Vec for any machine that GCC or Clang knows: 4 floats, compiled to SSE2, NEON or plain scalars.
// Included by vec.h only. Tests compile it with 16, to see that no kernel depends on the width.
#pragma once

#ifndef MH_PORTABLE_LANES
#define MH_PORTABLE_LANES 4
#endif

namespace mh::MH_ISA {

constexpr int kLanes = MH_PORTABLE_LANES;
typedef float Vec __attribute__((vector_size(4 * MH_PORTABLE_LANES)));
typedef std::int32_t Mask __attribute__((vector_size(4 * MH_PORTABLE_LANES)));
typedef std::uint32_t Lanes32 __attribute__((vector_size(4 * MH_PORTABLE_LANES)));

MH_INLINE Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
MH_INLINE void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }
MH_INLINE Vec splat(float x) { return x - Vec{}; }
MH_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
MH_INLINE Vec root(Vec v) {
  MH_UNROLL
  for (int i = 0; i < kLanes; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
}
MH_INLINE Vec larger(Vec a, Vec b) { return a > b ? a : b; }  // b where either is NaN
MH_INLINE Vec lesser(Vec a, Vec b) { return a < b ? a : b; }

// The first n lanes, 0 <= n <= kLanes; the others are zero and not touched in memory.
MH_INLINE Vec load_part(const float* p, int n) {
  Vec v = {};
  for (int i = 0; i < n; ++i) v[i] = p[i];
  return v;
}
MH_INLINE void store_part(float* p, int n, Vec v) {
  for (int i = 0; i < n; ++i) p[i] = v[i];
}

MH_INLINE float sum(Vec v) {
  float total = 0.0f;
  MH_UNROLL
  for (int i = 0; i < kLanes; i += 2) total += v[i] + v[i + 1];
  return total;
}

// out[i] += the sum of the lanes of v[i].
MH_INLINE void add_sums4(const Vec* v, float* out) {
  for (int i = 0; i < 4; ++i) out[i] += sum(v[i]);
}

// The sum of the lanes in double precision.
MH_INLINE double sum_wide(Vec v) {
  double total = 0.0;
  MH_UNROLL
  for (int i = 0; i < kLanes; ++i) total += static_cast<double>(v[i]);
  return total;
}

MH_INLINE Mask above(Vec a, Vec b) { return a > b; }
MH_INLINE Mask same(Vec a, Vec b) { return a == b; }
MH_INLINE Vec pick(Mask m, Vec yes, Vec no) { return m ? yes : no; }
MH_INLINE Vec keep(Mask m, Vec v) { return (Vec)(m & (Mask)v); }  // v or zero

// Elements 0, 2, 4... and 1, 3, 5... of a followed by b; interleave is the way back.
MH_INLINE void deinterleave(Vec a, Vec b, Vec& even, Vec& odd) {
  Vec e = {}, o = {};
  MH_UNROLL
  for (int i = 0; i < kLanes / 2; ++i) {
    e[i] = a[2 * i];
    o[i] = a[2 * i + 1];
    e[kLanes / 2 + i] = b[2 * i];
    o[kLanes / 2 + i] = b[2 * i + 1];
  }
  even = e;
  odd = o;
}
MH_INLINE void interleave(Vec even, Vec odd, Vec& a, Vec& b) {
  Vec low = {}, high = {};
  MH_UNROLL
  for (int i = 0; i < kLanes / 2; ++i) {
    low[2 * i] = even[i];
    low[2 * i + 1] = odd[i];
    high[2 * i] = even[kLanes / 2 + i];
    high[2 * i + 1] = odd[kLanes / 2 + i];
  }
  a = low;
  b = high;
}

// v[j] is column j of kLanes rows that lie `ld` floats apart.
MH_INLINE void load_turned(const float* p, Index ld, Vec (&v)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < kLanes; ++j) v[j][i] = p[i * ld + j];
  }
}

// Stores the lanes that are not zero side by side, with their places, and returns how many they
// are. Whole vectors are written.
MH_INLINE int store_nonzeros(float* values, std::uint32_t* places, Vec v, Lanes32 at) {
  int count = 0;
  for (int i = 0; i < kLanes; ++i) {
    values[count] = v[i];
    places[count] = at[i];
    count += v[i] != 0.0f;
  }
  return count;
}

MH_INLINE void keep_in_register(Vec&) {}

// Whole numbers 0 to 127 as bytes, kLanes of them.
MH_INLINE void store_bytes(std::uint8_t* p, Vec v) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::uint8_t>(v[i]);
}
MH_INLINE Vec load_bytes(const std::uint8_t* p) {
  Vec v = {};
  MH_UNROLL
  for (int i = 0; i < kLanes; ++i) v[i] = static_cast<float>(p[i]);
  return v;
}

// The upper halves of kLanes floats, which are bfloat16; the lower ones are zero.
MH_INLINE Vec load_halves(const std::uint16_t* p) {
  Lanes32 bits = {};
  MH_UNROLL
  for (int i = 0; i < kLanes; ++i) bits[i] = std::uint32_t{p[i]} << 16;
  return (Vec)bits;
}
// After `noise`, 16 bits a lane, was added to the whole float as a number.
MH_INLINE void store_halves(std::uint16_t* p, Vec v, Lanes32 noise) {
  const Lanes32 halves = ((Lanes32)v + noise) >> 16;
  MH_UNROLL
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::uint16_t>(halves[i]);
}

}  // namespace mh::MH_ISA
