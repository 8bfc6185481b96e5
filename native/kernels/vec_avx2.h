// Vec for AVX2 with FMA: 8 floats, 16 registers. Included by vec.h only.
#pragma once

#include <immintrin.h>

namespace mh::MH_ISA {

using Vec = __m256;
constexpr int kLanes = 8;
typedef std::uint32_t Lanes32 __attribute__((vector_size(32)));

MH_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
MH_INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
MH_INLINE Vec splat(float x) { return _mm256_set1_ps(x); }
MH_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
MH_INLINE Vec root(Vec v) { return _mm256_sqrt_ps(v); }
MH_INLINE Vec larger(Vec a, Vec b) { return _mm256_max_ps(a, b); }  // b where either is NaN
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

// out[i] += the sum of the lanes of v[i].
MH_INLINE void add_sums4(const Vec* v, float* out) {
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
  const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm_loadu_ps(out), sums));
}

// The sum of the lanes in double precision.
MH_INLINE double sum_wide(Vec v) {
  const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
  const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
  const __m256d both = _mm256_add_pd(low, high);
  const __m128d s = _mm_add_pd(_mm256_castpd256_pd128(both), _mm256_extractf128_pd(both, 1));
  return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}

using Mask = __m256;
MH_INLINE Mask above(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
MH_INLINE Mask same(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
MH_INLINE Vec pick(Mask m, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, m); }
MH_INLINE Vec keep(Mask m, Vec v) { return _mm256_and_ps(m, v); }  // v or zero

// Elements 0, 2, 4... and 1, 3, 5... of a followed by b; interleave is the way back.
MH_INLINE void deinterleave(Vec a, Vec b, Vec& even, Vec& odd) {
  const __m256 e = _mm256_shuffle_ps(a, b, 0x88), o = _mm256_shuffle_ps(a, b, 0xDD);
  even = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(e), 0xD8));
  odd = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(o), 0xD8));
}
MH_INLINE void interleave(Vec even, Vec odd, Vec& a, Vec& b) {
  const __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
  a = _mm256_permute2f128_ps(low, high, 0x20);
  b = _mm256_permute2f128_ps(low, high, 0x31);
}

// v[j] is column j of kLanes rows that lie `ld` floats apart.
MH_INLINE void load_turned(const float* p, Index ld, Vec (&v)[kLanes]) {
  MH_UNROLL
  for (int half = 0; half < 2; ++half) {
    __m256 rows[4];  // row i in the lower half, row i + 4 in the upper
    MH_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* at = p + i * ld + 4 * half;
      rows[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(at)),
                                     _mm_loadu_ps(at + 4 * ld), 1);
    }
    const __m256 a = _mm256_unpacklo_ps(rows[0], rows[1]), b = _mm256_unpacklo_ps(rows[2], rows[3]);
    const __m256 c = _mm256_unpackhi_ps(rows[0], rows[1]), d = _mm256_unpackhi_ps(rows[2], rows[3]);
    v[4 * half] = _mm256_shuffle_ps(a, b, 0x44);
    v[4 * half + 1] = _mm256_shuffle_ps(a, b, 0xEE);
    v[4 * half + 2] = _mm256_shuffle_ps(c, d, 0x44);
    v[4 * half + 3] = _mm256_shuffle_ps(c, d, 0xEE);
  }
}

// For each set of lanes, those lanes in order.
struct LaneOrders {
  std::uint8_t lanes[1 << kLanes][kLanes] = {};
  constexpr LaneOrders() {
    for (int set = 0; set < 1 << kLanes; ++set) {
      for (int lane = 0, to = 0; lane < kLanes; ++lane) {
        if (set >> lane & 1) lanes[set][to++] = static_cast<std::uint8_t>(lane);
      }
    }
  }
};
constexpr LaneOrders kLaneOrders;

// Stores the lanes that are not zero side by side, with their places, and returns how many they
// are. Whole vectors are written.
MH_INLINE int store_nonzeros(float* values, std::uint32_t* places, Vec v, Lanes32 at) {
  const int set = _mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_NEQ_UQ));
  const auto* lanes = reinterpret_cast<const __m128i*>(kLaneOrders.lanes[set]);
  const __m256i order = _mm256_cvtepu8_epi32(_mm_loadl_epi64(lanes));
  _mm256_storeu_ps(values, _mm256_permutevar8x32_ps(v, order));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(places),
                      _mm256_permutevar8x32_epi32((__m256i)at, order));
  return __builtin_popcount(static_cast<unsigned>(set));
}

// Else the compiler may load a value again for each of its uses.
MH_INLINE void keep_in_register(Vec& v) { asm("" : "+x"(v)); }

// Whole numbers 0 to 127 as bytes, kLanes of them.
MH_INLINE void store_bytes(std::uint8_t* p, Vec v) {
  const __m256i n = _mm256_cvtps_epi32(v);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
}
MH_INLINE Vec load_bytes(const std::uint8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}

// The upper halves of kLanes floats, which are bfloat16; the lower ones are zero.
MH_INLINE Vec load_halves(const std::uint16_t* p) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
// After `noise`, 16 bits a lane, was added to the whole float as a number.
MH_INLINE void store_halves(std::uint16_t* p, Vec v, Lanes32 noise) {
  const __m256i sum = _mm256_add_epi32(_mm256_castps_si256(v), (__m256i)noise);
  const __m256i halves = _mm256_srli_epi32(sum, 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves, halves), 0xD8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

}  // namespace mh::MH_ISA
