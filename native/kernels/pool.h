// Max pooling over 2 x 2 windows side by side, the shape that nearly every network uses.
//
//   row 2y     | a0 b0 a1 b1 ... |      even and odd columns are parted, so that a vector of
//   row 2y+1   | c0 d0 c1 d1 ... |      outputs is the largest of four vectors a, b, c, d
//
// Which of the four it was is kept as a byte for the way back. The first of equals wins, as in
// PyTorch. Other shapes are pooled in layer_pool.cpp.
#pragma once

#include "kernels/kernel_table.h"
#include "kernels/vec.h"

namespace mh::MH_ISA {

MH_INLINE void take_larger(Vec candidate, float number, Vec& best, Vec& chosen) {
  const Mask better = above(candidate, best);
  best = pick(better, candidate, best);
  chosen = pick(better, splat(number), chosen);
}

// Vectors run over a row's end into the place of the next row, which is written after it.
inline void max_pool_2x2(const Pool& p, const float* x, float* y, std::uint8_t* chosen, bool relu) {
  const Index skipped_row = p.height % 2 ? p.width : 0;
  for (Index plane = 0; plane < p.planes; ++plane) {
    for (Index row = 0; row < p.out_height; ++row) {
      for (Index i = 0; i < p.out_width; i += kLanes) {
        const float *top = x + 2 * i, *bottom = top + p.width;
        Vec a, b, c, d, which = zero();
        deinterleave(load(top), load(top + kLanes), a, b);
        deinterleave(load(bottom), load(bottom + kLanes), c, d);
        take_larger(b, 1.0f, a, which);
        take_larger(c, 2.0f, a, which);
        take_larger(d, 3.0f, a, which);
        store(y + i, relu ? larger(zero(), a) : a);
        store_bytes(chosen + i, which);
      }
      x += 2 * p.width;
      y += p.out_width;
      chosen += p.out_width;
    }
    x += skipped_row;
  }
}

// Writes every element of dx that a window covers, and zeros into an odd last row or column.
inline void max_pool_2x2_grad(const Pool& p, const float* y, const float* dy,
                              const std::uint8_t* chosen, float* dx) {
  const Index covered = 2 * p.out_width;
  for (Index plane = 0; plane < p.planes; ++plane) {
    for (Index row = 0; row < p.out_height; ++row) {
      float *top = dx, *bottom = dx + p.width;
      for (Index i = 0; i < p.out_width; i += kLanes) {
        const Vec whole = load(dy + i), which = load_bytes(chosen + i);
        const Vec d = y ? keep(above(load(y + i), zero()), whole) : whole;
        const Index rest = covered - 2 * i;
        Vec left, right;
        interleave(keep(same(which, zero()), d), keep(same(which, splat(1.0f)), d), left, right);
        store_upto(top + 2 * i, rest, left);
        store_upto(top + 2 * i + kLanes, rest - kLanes, right);
        interleave(keep(same(which, splat(2.0f)), d), keep(same(which, splat(3.0f)), d), left,
                   right);
        store_upto(bottom + 2 * i, rest, left);
        store_upto(bottom + 2 * i + kLanes, rest - kLanes, right);
      }
      if (covered < p.width) top[covered] = bottom[covered] = 0.0f;
      dx += 2 * p.width;
      if (y) y += p.out_width;
      dy += p.out_width;
      chosen += p.out_width;
    }
    if (p.height % 2) {
      for (Index i = 0; i < p.width; ++i) dx[i] = 0.0f;
      dx += p.width;
    }
  }
}

}  // namespace mh::MH_ISA
