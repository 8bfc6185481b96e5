// y = x w^T + bias of a linear layer, in the form that suits the batch.
//
// Small batches: dot products along the shared dimension. Both operands are contiguous that way, so
// nothing is packed: each weight is used only `batch` times. Blocks keep a piece of x in the
// first-level cache and a piece of w in the second:
//
//          k ->                        k ->
//   x  |--depth---|         w   |--depth---|
//   12 |==========|   L1        |==========|
//      |          |     kHeight |  L2      |
//
// Larger batches go by lists (linear_by_lists.h).
#pragma once

#include "kernels/kernel_table.h"
#include "kernels/linear_by_lists.h"
#include "kernels/tiles.h"

namespace mh::MH_ISA {

// y[b][o] += dot(x[b], w[o]) over `depth` elements, for XR rows of x and WR rows of w.
template <int WR, int XR>
MH_INLINE void add_dots(Index depth, const float* w, Index ldw, const float* x, Index ldx, float* y,
                        Index ldy) {
  Vec acc[XR][WR];
  clear(acc);
  const auto step = [&](auto get, Index k) {
    Vec xv[XR];
    MH_UNROLL
    for (int b = 0; b < XR; ++b) xv[b] = get(x + b * ldx + k);
    MH_UNROLL
    for (int o = 0; o < WR; ++o) {
      const Vec wv = get(w + o * ldw + k);
      MH_UNROLL
      for (int b = 0; b < XR; ++b) acc[b][o] = fma(wv, xv[b], acc[b][o]);
    }
  };
  Index k = 0;
  for (; k + kLanes <= depth; k += kLanes) step([](const float* p) { return load(p); }, k);
  const int rest = static_cast<int>(depth - k);
  if (rest) step([=](const float* p) { return load_part(p, rest); }, k);
  MH_UNROLL
  for (int b = 0; b < XR; ++b) {
    MH_UNROLL
    for (int o = 0; o + 4 <= WR; o += 4) add_sums4(&acc[b][o], y + b * ldy + o);
    MH_UNROLL
    for (int o = WR / 4 * 4; o < WR; ++o) y[b * ldy + o] += sum(acc[b][o]);
  }
}

// One block: `rows` rows of w against `batch` (at most 12) rows of x.
template <int WR, int kBatch>
inline void add_block(const LinearForward& p, Index depth, Index rows, Index batch, const float* w,
                      const float* x, float* y) {
  for_tiles<WR>(rows, [&](Index o, auto wr) {
    for_tiles<kBatch>(batch, [&](Index b, auto xr) {
      add_dots<decltype(wr)::value, decltype(xr)::value>(depth, w + o * p.in, p.in, x + b * p.ldx,
                                                         p.ldx, y + b * p.ldy + o, p.ldy);
    });
  });
}

inline void start_outputs(const LinearForward& p) {
  for (Index b = 0; b < p.batch; ++b) {
    float* y = p.y + b * p.ldy;
    for (Index o = 0; o < p.out; o += kLanes) {
      store_upto(y + o, p.out - o, p.bias ? load_upto(p.bias + o, p.out - o) : zero());
    }
  }
}

inline void rectify(Index n, float* y) {
  for (Index i = 0; i < n; i += kLanes) {
    store_upto(y + i, n - i, larger(zero(), load_upto(y + i, n - i)));
  }
}

inline void linear_forward_by_dots(const LinearForward& p) {
  constexpr Index kBatch = 12, kHeight = 256, kCached = 3840;
  const Index depth = kCached / smaller(p.batch, kBatch) / kPanel * kPanel;
  start_outputs(p);
  for (Index o = 0; o < p.out; o += kHeight) {
    const Index rows = smaller(kHeight, p.out - o);
    for (Index k = 0; k < p.in; k += depth) {
      const Index d = smaller(depth, p.in - k);
      const float* w = p.weight + o * p.in + k;
      for (Index b = 0; b < p.batch; b += kBatch) {
        const Index n = smaller(kBatch, p.batch - b);
        const float* x = p.x + b * p.ldx + k;
        float* y = p.y + b * p.ldy + o;
        n == 1 ? add_block<8, 1>(p, d, rows, n, w, x, y) : add_block<4, 3>(p, d, rows, n, w, x, y);
      }
    }
  }
  if (!p.relu) return;
  for (Index b = 0; b < p.batch; ++b) rectify(p.out, p.y + b * p.ldy);
}

inline void linear_forward(const LinearForward& p) {
  p.batch < kWideBatch ? linear_forward_by_dots(p) : linear_forward_by_lists(p);
}

}  // namespace mh::MH_ISA
