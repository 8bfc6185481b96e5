// The passes of a linear layer for batches that are not small, as products that pass over zeros
// (nonzeros.h).
//
//   forward    y[b] = sum of x[b][k] * w^T[k]: lists of samples, blocks of turned weights
//   backward   dx[b] = sum of dy[b][o] * w[o]: lists of samples, blocks of weights
//              g[o] = sum of dy[b][o] * x[b]: lists of outputs, blocks of samples
#pragma once

#include "kernels/nonzeros.h"

namespace mh::MH_ISA {

// Blocks of w in the order of the forward walk, turned to [kDepth][kStrip], a unit of kLanes rows
// at a time: the next block is turned while this one is used, and asked for only a few units
// earlier, because rows a power of two apart have little room in the cache.
struct TurnedBlocks {
  const LinearForward& p;
  Index deep = (p.in + kDepth - 1) / kDepth;  // blocks side by side

  static constexpr Index kUnits = kStripVectors, kAhead = 6;
  Index row(Index unit) const { return unit / kUnits / deep * kStrip + unit % kUnits * kLanes; }
  Index column(Index unit) const { return unit / kUnits % deep * kDepth; }

  // Zeros where w ends.
  MH_INLINE void turn(Index unit, float* block) const {
    ask(unit + kAhead);
    const Index o = row(unit), k = column(unit), depth = smaller(kDepth, p.in - k);
    for (Index c = 0; c < depth && o < p.out; c += kLanes) {
      const float* w = p.weight + o * p.in + k + c;
      Vec columns[kLanes];
      if (o + kLanes <= p.out && c + kLanes <= depth) {
        load_turned(w, p.in, columns);
      } else {
        turn_corner(w, p.out - o, depth - c, columns);
      }
      float* to = block + c * kStrip + unit % kUnits * kLanes;
      MH_UNROLL
      for (int i = 0; i < kLanes; ++i) store(to + i * kStrip, columns[i]);
    }
  }

  void turn_corner(const float* w, Index rows, Index depth, Vec (&columns)[kLanes]) const {
    alignas(64) float corner[kLanes * kLanes];
    for (int i = 0; i < kLanes; ++i) {
      store(corner + i * kLanes, i < rows ? load_upto(w + i * p.in, depth) : zero());
    }
    load_turned(corner, kLanes, columns);
  }

  MH_INLINE void ask(Index unit) const {
    const Index o = row(unit), k = column(unit);
    if (o + kLanes > p.out) return;
    prefetch_part<0>(p.weight + o * p.in + k, kLanes, p.in, smaller(kDepth, p.in - k), 0, 1);
  }
};

inline void finish_outputs(const LinearForward& p, Index o, const float* sums) {
  const Index width = smaller(kStrip, p.out - o);
  for (Index b = 0; b < p.batch; ++b) {
    float* y = p.y + b * p.ldy + o;
    for (Index i = 0; i < width; i += kLanes) {
      const Vec bias = p.bias ? load_upto(p.bias + o + i, width - i) : zero();
      const Vec out = load(sums + b * kStrip + i) + bias;
      store_upto(y + i, width - i, p.relu ? larger(zero(), out) : out);
    }
  }
}

inline void linear_forward_by_lists(const LinearForward& p) {
  alignas(64) float blocks[2][kDepth * kStrip];
  const Lists lists(p.scratch, p.batch, p.in);
  float* sums = p.scratch + Lists::floats(p.batch, p.in);  // [batch][kStrip]
  for (Index k = 0; k < p.in; k += kDepth) {
    lists.fill(k / kDepth, p.batch, smaller(kDepth, p.in - k), {p.x + k, p.ldx, 1});
  }
  const TurnedBlocks turned{p};
  constexpr Index kUnits = TurnedBlocks::kUnits;
  const Index groups = Lists::groups(p.batch);
  for (Index unit = 0; unit < kUnits; ++unit) turned.turn(unit, blocks[0]);
  Index number = 0;
  for (Index o = 0; o < p.out; o += kStrip) {
    for (Index k = 0; k < p.in; k += kDepth) {
      const float* block = blocks[number++ % 2];
      for (Index g = 0; g < groups; ++g) {
        Tile tile;
        float* out = sums + g * kTogether * kStrip;
        k ? load_tile(out, tile) : clear_tile(tile);
        lists.add_products(k / kDepth, g * kTogether, block, tile);
        store_tile(out, tile);
        for (Index u = g * kUnits / groups; u < (g + 1) * kUnits / groups; ++u) {
          turned.turn(number * kUnits + u, blocks[number % 2]);
        }
      }
    }
    finish_outputs(p, o, sums);
  }
}

// Copies a block of w: rows of w may lie a power of two apart, where they would evict each other
// from the cache.
inline void copy_block(const LinearBackward& p, Index row, Index rows, Index column, float* block) {
  const Index rest = p.in - column;
  for (Index r = 0; r < rows; ++r) {
    const float* w = p.weight + (row + r) * p.in + column;
    MH_UNROLL
    for (int v = 0; v < kStripVectors; ++v) {
      store(block + r * kStrip + v * kLanes, load_upto(w + v * kLanes, rest - v * kLanes));
    }
  }
}

inline void add_input_grads(const LinearBackward& p, const Lists& by_sample, Index row, Index rows,
                            Index column, const float* block) {
  const Index groups = Lists::groups(p.batch);
  float* dx = p.dx_panels + column * groups * kTogether;
  const float* next = p.weight + row * p.in + column + kStrip;
  for (Index g = 0; g < groups; ++g) {
    prefetch_part<0>(next, rows, p.in, kStrip, g, groups);
    Tile tile;
    float* out = dx + g * kTogether * kStrip;
    row ? load_tile(out, tile) : clear_tile(tile);
    by_sample.add_products(0, g * kTogether, block, tile);
    store_tile(out, tile);
  }
}

// The last of a tile's columns and rows may be beyond the weight's.
template <typename Finish>
MH_INLINE void finish_tile(const Finish& finish, const Tile& tile, Index at, Index in, Index rest,
                           Index rows) {
  if (rest >= kStrip && rows >= kTogether) {
    MH_UNROLL
    for (Index r = 0; r < kTogether; ++r) {
      MH_UNROLL
      for (int v = 0; v < kStripVectors; ++v) {
        finish(tile[r][v], at + r * in + v * kLanes, kLanes);
      }
    }
    return;
  }
  for (Index r = 0; r < smaller(rows, kTogether); ++r) {
    for (int v = 0; v * kLanes < smaller(rest, kStrip); ++v) {
      const Index lanes = smaller(rest - v * kLanes, kLanes);
      finish(tile[r][v], at + r * in + v * kLanes, static_cast<int>(lanes));
    }
  }
}

// `sums` holds a block's gradients while more samples are to come.
template <typename Finish>
void finish_block(const LinearBackward& p, const Finish finish, const Lists& by_row, Index row,
                  Index rows, Index column, float* sums) {
  const float* x = p.x_panels + column * Lists::groups(p.batch) * kTogether;
  for (Index b = 0; b < p.batch; b += kDepth) {
    const bool last = b + kDepth >= p.batch;
    for (Index r = 0; r < rows; r += kTogether) {
      const Index at = (row + r) * p.in + column, count = smaller(kTogether, rows - r);
      if (last) {
        prefetch_part<1>(p.weight + at + kStrip, count, p.in, kStrip, 0, 1);
        if (p.state0) prefetch_part<1>(p.state0 + at + kStrip, count, p.in, kStrip, 0, 1);
        if (p.state1) prefetch_part<1>(p.state1 + at + kStrip, count, p.in, kStrip, 0, 1);
      }
      Tile tile;
      b ? load_tile(sums + r * kStrip, tile) : clear_tile(tile);
      by_row.add_products(b / kDepth, r, x + b * kStrip, tile);
      if (last) {
        finish_tile(finish, tile, at, p.in, p.in - column, count);
      } else {
        store_tile(sums + r * kStrip, tile);
      }
    }
  }
}

template <typename Finish>
void walk_weights_by_lists(const LinearBackward& p, const Finish& finish) {
  alignas(64) float block[kDepth * kStrip];
  const Lists by_sample(p.scratch, p.batch, kDepth);
  const Lists by_row(p.scratch + Lists::floats(p.batch, kDepth), kDepth, p.batch);
  for (Index row = 0; row < p.out; row += kDepth) {
    const Index rows = smaller(kDepth, p.out - row);
    const float* dy = p.dy + row;
    if (p.dx_panels) by_sample.fill(0, p.batch, rows, {dy, p.lddy, 1});
    for (Index b = 0; Finish::kWanted && b < p.batch; b += kDepth) {
      by_row.fill(b / kDepth, rows, smaller(kDepth, p.batch - b), {dy + b * p.lddy, 1, p.lddy});
    }
    for (Index column = 0; column < p.in; column += kStrip) {
      if (p.dx_panels) {
        copy_block(p, row, rows, column, block);
        add_input_grads(p, by_sample, row, rows, column, block);
      }
      if (Finish::kWanted) finish_block(p, finish, by_row, row, rows, column, block);
    }
  }
}

}  // namespace mh::MH_ISA
