// Copies floats to memory that is not read soon, without driving from the cache what is.
//
// A store that passes by the cache need not read what it overwrites, and takes the same time however
// much memory is used in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace mh::server {

// Whether the float with these bits is neither infinite nor not a number.
inline bool is_finite(std::uint32_t bits) { return (bits & 0x7f800000u) != 0x7f800000u; }

// `to` is aligned to 16 bytes, and `bytes` are whole floats. Returns whether all are finite.
inline bool copy_past_cache(const std::uint8_t* from, std::size_t bytes, std::uint8_t* to) {
  std::size_t at = 0;
  bool finite = true;
#if defined(__SSE2__)
  const __m128i exponent = _mm_set1_epi32(0x7f800000);
  __m128i wrong[4] = {};
  for (; at + 64 <= bytes; at += 64) {
    for (std::size_t i = 0; i < 4; ++i) {
      const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at) + i);
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at) + i, part);
      wrong[i] = _mm_or_si128(wrong[i], _mm_cmpeq_epi32(_mm_and_si128(part, exponent), exponent));
    }
  }
  const __m128i any =
      _mm_or_si128(_mm_or_si128(wrong[0], wrong[1]), _mm_or_si128(wrong[2], wrong[3]));
  finite = _mm_movemask_epi8(any) == 0;
#endif
  for (; at < bytes; at += sizeof(float)) {
    std::uint32_t bits;
    std::memcpy(&bits, from + at, sizeof bits);
    std::memcpy(to + at, &bits, sizeof bits);
    finite &= is_finite(bits);
  }
#if defined(__SSE2__)
  _mm_sfence();  // others hear of it by a message, which must not overtake it
#endif
  return finite;
}

}  // namespace mh::server
