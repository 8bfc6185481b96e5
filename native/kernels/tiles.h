// Cutting work into register tiles of nearly equal height, and the two products they hold.
//
//   outer product, rows x 2 vectors          dot product, 4 rows x 3 rows
//
//        b[k]  |########|########|                x0 x1 x2     (vectors along k)
//   a0[k] x    |  acc   |  acc   |           w0   .  .  .
//   a1[k] x    |  acc   |  acc   |           w1   .  .  .      each dot is a vector that is
//    ...                                     w2   .  .  .      summed over its lanes at the end
//   a5[k] x    |  acc   |  acc   |           w3   .  .  .
//
// Either way 12 accumulators are busy: two multiply-adds start per cycle and take four cycles, so
// at least 8 must be independent, and 12 leave room for the operands in 16 registers.
#pragma once

#include "kernels/vec.h"

namespace mh::MH_ISA {

constexpr int kPanel = 2 * kLanes;  // columns of an outer-product tile
constexpr int kTileRows = 6;

template <int N>
struct Rows {
  static constexpr int value = N;
};

template <int N, int kMax, typename Body>
MH_INLINE void call_with_rows(Index rows, const Body& body) {
  if constexpr (N < kMax) {
    if (rows != N) return call_with_rows<N + 1, kMax>(rows, body);
  }
  body(Rows<N>{});
}

// Calls body(start, Rows<n>) for tiles of at most kMax rows that differ by one row at most:
// 8 rows become 4 + 4, not 6 + 2, because a tile of 2 would leave half the multipliers idle.
template <int kMax, typename Body>
MH_INLINE void for_tiles(Index total, const Body& body) {
  const Index tiles = (total + kMax - 1) / kMax;
  Index start = 0;
  for (Index t = 0; t < tiles; ++t) {
    const Index rows = (total - start) / (tiles - t);
    call_with_rows<1, kMax>(rows, [&](auto n) { body(start, n); });
    start += rows;
  }
}

// acc[i][v] += sum over k of a[i * a_row + k * a_step] * b[k * b_step + v * kLanes + lane]
template <int R, int V>
MH_INLINE void add_outer(Vec (&acc)[R][V], Index depth, const float* a, Index a_row, Index a_step,
                         const float* b, Index b_step) {
  for (Index k = 0; k < depth; ++k) {
    Vec bv[V];
    MH_UNROLL
    for (int v = 0; v < V; ++v) bv[v] = load(b + v * kLanes);
    MH_UNROLL
    for (int i = 0; i < R; ++i) {
      const Vec av = splat(a[i * a_row]);
      MH_UNROLL
      for (int v = 0; v < V; ++v) acc[i][v] = fma(av, bv[v], acc[i][v]);
    }
    a += a_step;
    b += b_step;
  }
}

template <int R, int V>
MH_INLINE void clear(Vec (&acc)[R][V]) {
  MH_UNROLL
  for (int i = 0; i < R; ++i) {
    MH_UNROLL
    for (int v = 0; v < V; ++v) acc[i][v] = zero();
  }
}

}  // namespace mh::MH_ISA
