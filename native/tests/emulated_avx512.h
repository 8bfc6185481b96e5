// The AVX-512 operations of vec_avx512.h as plain loops, after Intel's description of each, so that
// what is built from them can be tested on machines without them. To be included before everything
// else; it then pretends that the compiler was told to use AVX-512.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>

namespace emulated_avx512 {

template <typename V, typename F>
inline V each(F&& value, int count) {
  V out = {};
  for (int i = 0; i < count; ++i) out[i] = value(i);
  return out;
}

typedef std::int32_t Ints __attribute__((vector_size(64)));
typedef std::int32_t HalfInts __attribute__((vector_size(32)));
typedef std::uint8_t Bytes __attribute__((vector_size(16)));
typedef std::uint16_t Shorts __attribute__((vector_size(32)));

template <typename F>
inline __m512 floats(F&& value) {
  return each<__m512>(value, 16);
}
template <typename F>
inline __m512i ints(F&& value) {
  return (__m512i)each<Ints>(value, 16);
}
inline bool is_set(__mmask16 mask, int lane) { return ((mask >> lane) & 1) != 0; }

inline __m512 loadu_ps(const void* p) {
  return floats([p](int i) { return static_cast<const float*>(p)[i]; });
}
inline void storeu_ps(void* p, __m512 v) {
  for (int i = 0; i < 16; ++i) static_cast<float*>(p)[i] = v[i];
}
inline __m512 maskz_loadu_ps(__mmask16 m, const void* p) {
  return floats([=](int i) { return is_set(m, i) ? static_cast<const float*>(p)[i] : 0.0f; });
}
inline void mask_storeu_ps(void* p, __mmask16 m, __m512 v) {
  for (int i = 0; i < 16; ++i) {
    if (is_set(m, i)) static_cast<float*>(p)[i] = v[i];
  }
}
inline __m512 set1_ps(float x) {
  return floats([x](int) { return x; });
}
inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return floats([&](int i) { return std::fma(a[i], b[i], c[i]); });
}
inline __m512 sqrt_ps(__m512 v) {
  return floats([&](int i) { return std::sqrt(v[i]); });
}
inline __m512 max_ps(__m512 a, __m512 b) {
  return floats([&](int i) { return a[i] > b[i] ? a[i] : b[i]; });
}
inline __m512 min_ps(__m512 a, __m512 b) {
  return floats([&](int i) { return a[i] < b[i] ? a[i] : b[i]; });
}
inline float reduce_add_ps(__m512 v) {
  float total = 0.0f;
  for (int i = 0; i < 16; ++i) total += v[i];
  return total;
}
inline double reduce_add_pd(__m512d v) {
  double total = 0.0;
  for (int i = 0; i < 8; ++i) total += v[i];
  return total;
}
inline __m512d add_pd(__m512d a, __m512d b) { return a + b; }
inline __m256 castps512_ps256(__m512 v) {
  return each<__m256>([&](int i) { return v[i]; }, 8);
}
inline __m256 extractf32x8_ps(__m512 v, int half) {
  return each<__m256>([&](int i) { return v[8 * half + i]; }, 8);
}
inline __m512d cvtps_pd(__m256 v) {
  return each<__m512d>([&](int i) { return static_cast<double>(v[i]); }, 8);
}
inline __mmask16 cmp_ps_mask(__m512 a, __m512 b, int how) {
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i) {
    const bool holds = how == _CMP_GT_OQ   ? a[i] > b[i]
                       : how == _CMP_EQ_OQ ? a[i] == b[i]
                                           : how == _CMP_NEQ_UQ && a[i] != b[i];
    mask |= static_cast<unsigned>(holds) << i;
  }
  return static_cast<__mmask16>(mask);
}
inline __m512 mask_blend_ps(__mmask16 m, __m512 clear, __m512 set) {
  return floats([&](int i) { return is_set(m, i) ? set[i] : clear[i]; });
}
inline __m512 maskz_mov_ps(__mmask16 m, __m512 v) {
  return floats([&](int i) { return is_set(m, i) ? v[i] : 0.0f; });
}
inline __m512 maskz_compress_ps(__mmask16 m, __m512 v) {
  __m512 out = {};
  for (int i = 0, to = 0; i < 16; ++i) {
    if (is_set(m, i)) out[to++] = v[i];
  }
  return out;
}
inline __m512i maskz_compress_epi32(__mmask16 m, __m512i v) {
  Ints out = {};
  for (int i = 0, to = 0; i < 16; ++i) {
    if (is_set(m, i)) out[to++] = ((Ints)v)[i];
  }
  return (__m512i)out;
}
inline void storeu_si512(void* p, __m512i v) {
  for (int i = 0; i < 16; ++i) static_cast<std::int32_t*>(p)[i] = ((Ints)v)[i];
}
inline __m512 permutex2var_ps(__m512 a, __m512i from, __m512 b) {
  return floats([&](int i) {
    const int lane = ((Ints)from)[i] & 31;
    return lane < 16 ? a[lane] : b[lane - 16];
  });
}
template <typename... Lanes>
inline __m512i setr_epi32(Lanes... lanes) {
  return (__m512i)Ints{lanes...};
}
inline __m512i set1_epi32(int x) {
  return ints([x](int) { return x; });
}
inline __m512i add_epi32(__m512i a, __m512i b) {
  return ints([&](int i) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(((Ints)a)[i]) +
                                     static_cast<std::uint32_t>(((Ints)b)[i]));
  });
}
inline __m512i slli_epi32(__m512i v, int by) {
  return ints([&](int i) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(((Ints)v)[i]) << by);
  });
}
inline __m512i srli_epi32(__m512i v, int by) {
  return ints([&](int i) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(((Ints)v)[i]) >> by);
  });
}
inline __m512i castps_si512(__m512 v) { return (__m512i)v; }
inline __m512 castsi512_ps(__m512i v) { return (__m512)v; }
inline __m512i cvtps_epi32(__m512 v) {
  return ints([&](int i) { return static_cast<std::int32_t>(std::nearbyint(v[i])); });
}
inline __m512 cvtepi32_ps(__m512i v) {
  return floats([&](int i) { return static_cast<float>(((Ints)v)[i]); });
}
inline __m512i cvtepu8_epi32(__m128i v) {
  return ints([&](int i) { return static_cast<std::int32_t>(((Bytes)v)[i]); });
}
inline __m512i cvtepu16_epi32(__m256i v) {
  return ints([&](int i) { return static_cast<std::int32_t>(((Shorts)v)[i]); });
}
inline __m128i cvtepi32_epi8(__m512i v) {
  return (__m128i)each<Bytes>([&](int i) { return static_cast<std::uint8_t>(((Ints)v)[i]); }, 16);
}
inline __m256i cvtepi32_epi16(__m512i v) {
  return (__m256i)each<Shorts>([&](int i) { return static_cast<std::uint16_t>(((Ints)v)[i]); }, 16);
}

}  // namespace emulated_avx512

#define _mm512_loadu_ps emulated_avx512::loadu_ps
#define _mm512_storeu_ps emulated_avx512::storeu_ps
#define _mm512_maskz_loadu_ps emulated_avx512::maskz_loadu_ps
#define _mm512_mask_storeu_ps emulated_avx512::mask_storeu_ps
#define _mm512_set1_ps emulated_avx512::set1_ps
#define _mm512_fmadd_ps emulated_avx512::fmadd_ps
#define _mm512_sqrt_ps emulated_avx512::sqrt_ps
#define _mm512_max_ps emulated_avx512::max_ps
#define _mm512_min_ps emulated_avx512::min_ps
#define _mm512_reduce_add_ps emulated_avx512::reduce_add_ps
#define _mm512_reduce_add_pd emulated_avx512::reduce_add_pd
#define _mm512_add_pd emulated_avx512::add_pd
#define _mm512_castps512_ps256 emulated_avx512::castps512_ps256
#define _mm512_extractf32x8_ps emulated_avx512::extractf32x8_ps
#define _mm512_cvtps_pd emulated_avx512::cvtps_pd
#define _mm512_cmp_ps_mask emulated_avx512::cmp_ps_mask
#define _mm512_mask_blend_ps emulated_avx512::mask_blend_ps
#define _mm512_maskz_mov_ps emulated_avx512::maskz_mov_ps
#define _mm512_maskz_compress_ps emulated_avx512::maskz_compress_ps
#define _mm512_maskz_compress_epi32 emulated_avx512::maskz_compress_epi32
#define _mm512_storeu_si512 emulated_avx512::storeu_si512
#define _mm512_permutex2var_ps emulated_avx512::permutex2var_ps
#undef _mm512_setr_epi32
#define _mm512_setr_epi32 emulated_avx512::setr_epi32
#define _mm512_set1_epi32 emulated_avx512::set1_epi32
#define _mm512_add_epi32 emulated_avx512::add_epi32
#define _mm512_slli_epi32 emulated_avx512::slli_epi32
#define _mm512_srli_epi32 emulated_avx512::srli_epi32
#define _mm512_castps_si512 emulated_avx512::castps_si512
#define _mm512_castsi512_ps emulated_avx512::castsi512_ps
#define _mm512_cvtps_epi32 emulated_avx512::cvtps_epi32
#define _mm512_cvtepi32_ps emulated_avx512::cvtepi32_ps
#define _mm512_cvtepu8_epi32 emulated_avx512::cvtepu8_epi32
#define _mm512_cvtepu16_epi32 emulated_avx512::cvtepu16_epi32
#define _mm512_cvtepi32_epi8 emulated_avx512::cvtepi32_epi8
#define _mm512_cvtepi32_epi16 emulated_avx512::cvtepi32_epi16

#define __AVX512F__ 1
