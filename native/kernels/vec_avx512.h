// Vec for AVX-512 (F, BW, DQ, VL): 16 floats, 32 registers. Included by vec.h only.
#pragma once

#include <immintrin.h>

namespace mh::MH_ISA {

using Vec = __m512;
constexpr int kLanes = 16;
typedef std::uint32_t Lanes32 __attribute__((vector_size(64)));

MH_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
MH_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
MH_INLINE Vec splat(float x) { return _mm512_set1_ps(x); }
MH_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
MH_INLINE Vec root(Vec v) { return _mm512_sqrt_ps(v); }
MH_INLINE Vec larger(Vec a, Vec b) { return _mm512_max_ps(a, b); }  // b where either is NaN
MH_INLINE Vec lesser(Vec a, Vec b) { return _mm512_min_ps(a, b); }

// The first n lanes, 0 <= n <= kLanes; the others are zero and not touched in memory.
MH_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
MH_INLINE Vec load_part(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
MH_INLINE void store_part(float* p, int n, Vec v) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }

MH_INLINE float sum(Vec v) { return _mm512_reduce_add_ps(v); }

// out[i] += the sum of the lanes of v[i].
MH_INLINE void add_sums4(const Vec* v, float* out) {
  __m256 half[4];
  MH_UNROLL
  for (int i = 0; i < 4; ++i) {
    half[i] = _mm256_add_ps(_mm512_castps512_ps256(v[i]), _mm512_extractf32x8_ps(v[i], 1));
  }
  const __m256 pairs =
      _mm256_hadd_ps(_mm256_hadd_ps(half[0], half[1]), _mm256_hadd_ps(half[2], half[3]));
  const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm_loadu_ps(out), sums));
}

// The sum of the lanes in double precision.
MH_INLINE double sum_wide(Vec v) {
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
  const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
  return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}

using Mask = __mmask16;
MH_INLINE Mask above(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
MH_INLINE Mask same(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
MH_INLINE Vec pick(Mask m, Vec yes, Vec no) { return _mm512_mask_blend_ps(m, no, yes); }
MH_INLINE Vec keep(Mask m, Vec v) { return _mm512_maskz_mov_ps(m, v); }  // v or zero

// Elements 0, 2, 4... and 1, 3, 5... of a followed by b; interleave is the way back.
MH_INLINE void deinterleave(Vec a, Vec b, Vec& even, Vec& odd) {
  const __m512i from = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even = _mm512_permutex2var_ps(a, from, b);
  odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(from, _mm512_set1_epi32(1)), b);
}
MH_INLINE void interleave(Vec even, Vec odd, Vec& a, Vec& b) {
  const __m512i from = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  a = _mm512_permutex2var_ps(even, from, odd);
  b = _mm512_permutex2var_ps(even, _mm512_add_epi32(from, _mm512_set1_epi32(8)), odd);
}

// v[j] is column j of kLanes rows that lie `ld` floats apart: interleaving the halves of a matrix
// of 2^n rows n times turns it.
MH_INLINE void load_turned(const float* p, Index ld, Vec (&v)[kLanes]) {
  MH_UNROLL
  for (int i = 0; i < kLanes; ++i) v[i] = load(p + i * ld);
  MH_UNROLL
  for (int n = 1; n < kLanes; n *= 2) {
    Vec half[kLanes];
    MH_UNROLL
    for (int i = 0; i < kLanes; ++i) half[i] = v[i];
    MH_UNROLL
    for (int i = 0; i < kLanes / 2; ++i) {
      interleave(half[i], half[i + kLanes / 2], v[2 * i], v[2 * i + 1]);
    }
  }
}

// Stores the lanes that are not zero side by side, with their places, and returns how many they
// are. Whole vectors are written.
MH_INLINE int store_nonzeros(float* values, std::uint32_t* places, Vec v, Lanes32 at) {
  const Mask set = _mm512_cmp_ps_mask(v, splat(0.0f), _CMP_NEQ_UQ);
  store(values, _mm512_maskz_compress_ps(set, v));
  _mm512_storeu_si512(places, _mm512_maskz_compress_epi32(set, (__m512i)at));
  return __builtin_popcount(set);
}

MH_INLINE void keep_in_register(Vec&) {}  // there are enough

// Whole numbers 0 to 127 as bytes, kLanes of them.
MH_INLINE void store_bytes(std::uint8_t* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
}
MH_INLINE Vec load_bytes(const std::uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}

// The upper halves of kLanes floats, which are bfloat16; the lower ones are zero.
MH_INLINE Vec load_halves(const std::uint16_t* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
// After `noise`, 16 bits a lane, was added to the whole float as a number.
MH_INLINE void store_halves(std::uint16_t* p, Vec v, Lanes32 noise) {
  const __m512i sum = _mm512_add_epi32(_mm512_castps_si512(v), (__m512i)noise);
  const __m256i halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), halves);
}

}  // namespace mh::MH_ISA
