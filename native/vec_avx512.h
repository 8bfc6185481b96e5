// Vec for AVX-512 (F, BW, DQ, VL): 16 floats, 32 registers. Included by vec.h only.
#pragma once

#include <immintrin.h>

namespace mh::MH_ISA {

using Vec = __m512;
constexpr int kLanes = 16;

MH_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
MH_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
MH_INLINE Vec splat(float x) { return _mm512_set1_ps(x); }
MH_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
MH_INLINE Vec root(Vec v) { return _mm512_sqrt_ps(v); }
MH_INLINE Vec larger(Vec a, Vec b) { return _mm512_max_ps(a, b); }
MH_INLINE Vec lesser(Vec a, Vec b) { return _mm512_min_ps(a, b); }

// The first n lanes, 0 <= n <= kLanes; the others are zero and not touched in memory.
MH_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
MH_INLINE Vec load_part(const float* p, int n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
MH_INLINE void store_part(float* p, int n, Vec v) {
  _mm512_mask_storeu_ps(p, first_lanes(n), v);
}

MH_INLINE float sum(Vec v) { return _mm512_reduce_add_ps(v); }

// The sum of the lanes in double precision.
MH_INLINE double sum_wide(Vec v) {
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
  const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
  return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}

}  // namespace mh::MH_ISA
