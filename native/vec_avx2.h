// Vec for AVX2 with FMA: 8 floats, 16 registers. Included by vec.h only.
#pragma once

#include <immintrin.h>

namespace mh::MH_ISA {

using Vec = __m256;
constexpr int kLanes = 8;

MH_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
MH_INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
MH_INLINE Vec splat(float x) { return _mm256_set1_ps(x); }
MH_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
MH_INLINE Vec root(Vec v) { return _mm256_sqrt_ps(v); }
MH_INLINE Vec larger(Vec a, Vec b) { return _mm256_max_ps(a, b); }
MH_INLINE Vec lesser(Vec a, Vec b) { return _mm256_min_ps(a, b); }

// The first n lanes, 0 <= n <= kLanes; the others are zero and not touched in memory.
MH_INLINE __m256i first_lanes(int n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
}
MH_INLINE Vec load_part(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
MH_INLINE void store_part(float* p, int n, Vec v) { _mm256_maskstore_ps(p, first_lanes(n), v); }

MH_INLINE float sum(Vec v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// The sum of the lanes in double precision.
MH_INLINE double sum_wide(Vec v) {
  const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
  const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
  const __m256d both = _mm256_add_pd(low, high);
  const __m128d s = _mm_add_pd(_mm256_castpd256_pd128(both), _mm256_extractf128_pd(both, 1));
  return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}

}  // namespace mh::MH_ISA
