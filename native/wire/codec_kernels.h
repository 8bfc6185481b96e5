// The loops of the encodings (codec.h), written so that a compiler turns them into vectors.
//
// Encoded values may lie at any address, so they are read and written with memcpy; magnitudes are
// compared as integers, which orders floats correctly and NaN above everything.
#pragma once

#include "kernels/vec.h"

namespace mh::MH_ISA {

template <typename T>
MH_INLINE T value_at(const std::uint8_t* bytes, Index i) {
  T value;
  __builtin_memcpy(&value, bytes + i * static_cast<Index>(sizeof value), sizeof value);
  return value;
}
template <typename T>
MH_INLINE void put_at(std::uint8_t* bytes, Index i, T value) {
  __builtin_memcpy(bytes + i * static_cast<Index>(sizeof value), &value, sizeof value);
}

template <typename To, typename From>
MH_INLINE To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

constexpr std::uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;

// Rounds to nearest, ties to even. A NaN stays one: rounding could carry it to infinity.
inline void to_bfloat16(Index n, const float* x, std::uint8_t* encoded) {
  for (Index i = 0; i < n; ++i) {
    const auto bits = same_bits<std::uint32_t>(x[i]);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const std::uint32_t quiet = (bits >> 16) | 0x40u;
    const bool nan = (bits & kMagnitude) > kInfinity;
    put_at<std::uint16_t>(encoded, i, static_cast<std::uint16_t>(nan ? quiet : rounded));
  }
}

inline void from_bfloat16(Index n, const std::uint8_t* encoded, float* x) {
  for (Index i = 0; i < n; ++i) {
    x[i] = same_bits<float>(std::uint32_t{value_at<std::uint16_t>(encoded, i)} << 16);
  }
}

inline std::uint32_t largest_magnitude(Index n, const float* x) {
  std::int32_t largest = 0;
  for (Index i = 0; i < n; ++i) {
    const auto bits = same_bits<std::int32_t>(x[i]) & static_cast<std::int32_t>(kMagnitude);
    largest = bits > largest ? bits : largest;
  }
  return static_cast<std::uint32_t>(largest);
}

// One block; returns its scale: NaN where a value is not finite (or above 2^127, whose neighbours
// could not be decoded), zero where all are too small to scale.
inline float to_int8(Index n, const float* x, std::uint8_t* encoded) {
  constexpr std::uint32_t kTooLarge = 0x7f000000;
  constexpr float kSmallestNormal = 1.17549435e-38f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves whole numbers
  const std::uint32_t peak = largest_magnitude(n, x);
  const float scale = peak >= kTooLarge ? __builtin_nanf("") : same_bits<float>(peak) / 127.0f;
  if (!(scale >= kSmallestNormal)) {
    __builtin_memset(encoded, 0, static_cast<std::size_t>(n));
    return scale < kSmallestNormal ? 0.0f : scale;
  }
  const float per_unit = 1.0f / scale;
  for (Index i = 0; i < n; ++i) {
    const auto whole = same_bits<std::int32_t>(x[i] * per_unit + kRound);
    put_at<std::int8_t>(encoded, i,
                        static_cast<std::int8_t>(whole - same_bits<std::int32_t>(kRound)));
  }
  return scale;
}

inline void from_int8(Index n, float scale, const std::uint8_t* encoded, float* x) {
  for (Index i = 0; i < n; ++i) {
    x[i] = scale * static_cast<float>(value_at<std::int8_t>(encoded, i));
  }
}

// A finite number times zero is zero; the others leave NaN in the sums.
inline bool all_finite(Index n, const std::uint8_t* floats) {
  constexpr Index kStep = 4 * kLanes;
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  Index i = 0;
  for (; i + kStep <= n; i += kStep) {
    MH_UNROLL
    for (int u = 0; u < 4; ++u) {
      Vec v;
      __builtin_memcpy(&v, floats + 4 * (i + u * kLanes), sizeof v);
      sums[u] = fma(v, zero(), sums[u]);
    }
  }
  float rest = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < n; ++i) rest += 0.0f * value_at<float>(floats, i);
  return rest == 0.0f;
}

// The same for bfloat16, where all bits of the exponent say so.
inline bool all_finite_bfloat16(Index n, const std::uint8_t* encoded) {
  std::uint16_t bad = 0;
  for (Index i = 0; i < n; ++i) {
    bad |= (value_at<std::uint16_t>(encoded, i) & 0x7f80u) == 0x7f80u ? 1 : 0;
  }
  return bad == 0;
}

}  // namespace mh::MH_ISA
