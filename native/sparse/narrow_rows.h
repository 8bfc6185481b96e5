// Rows of a weight that is kept as bfloat16: half the bytes, and 8 bits of a number.
//
// A step of training is often smaller than half the distance to the next bfloat16, and would be
// lost if the new weight were rounded to the nearest. So it is rounded up or down at random, in
// proportion to the distances: then its mean over many steps is right (Gupta et al. 2015). What is
// random follows from a number of the batch (`salt`) and the place in the weight, so that it
// depends on no thread.
#pragma once

#include "sparse/active_batch.h"
#include "kernels/vec.h"

namespace mh::MH_ISA {

MH_INLINE Vec load_narrow(const std::uint16_t* p, Index n) {
  if (n >= kLanes) return load_halves(p);
  std::uint16_t part[kLanes] = {};
  for (Index i = 0; i < n; ++i) part[i] = p[i];
  return load_halves(part);
}

// 16 bits a lane, spread evenly over neighbours: a weight sees random ones from batch to batch,
// since the salt is.
MH_INLINE Lanes32 rounding_noise(Index place, std::uint32_t salt) {
  constexpr std::uint32_t kGoldenRatio = 0x9E3779B1u;
  Lanes32 lanes = {};
  MH_UNROLL
  for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<std::uint32_t>(i) * kGoldenRatio;
  return (lanes + (static_cast<std::uint32_t>(place) * kGoldenRatio + salt)) >> 16;
}

// What is not finite stays so: the noise is less than the last bit that is kept.
MH_INLINE void store_narrow(std::uint16_t* p, Index n, Vec v, Index place, std::uint32_t salt) {
  const Lanes32 noise = rounding_noise(place, salt);
  if (n >= kLanes) return store_halves(p, v, noise);
  std::uint16_t part[kLanes];
  store_halves(part, v, noise);
  for (Index i = 0; i < n; ++i) p[i] = part[i];
}

}  // namespace mh::MH_ISA
