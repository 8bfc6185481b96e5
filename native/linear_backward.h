// The backward pass of a linear layer in one walk over its weights.
//
// For a block of rows of w (outputs) and a panel of its columns (inputs):
//
//        panel
//   w  |--------|--------|     1. dx[:, panel] += dy[:, block] w[block, panel], from the weights
//      |########|        |        as they are
//      |########| block  |     2. g = dy[:, block]^T x[:, panel] stays in registers and goes
//      |########|        |        straight through the update rule into w and its state
//
// so the weight gradient is never in memory, and w and its state travel to the core once. x and dx
// are kept in panels [column / kPanel][batch][kPanel], so that a tile reads them in one stream.
#pragma once

#include <type_traits>

#include "kernel_table.h"
#include "tiles.h"
#include "update.h"

namespace mh::MH_ISA {

constexpr Index kStreamBatch = 16;  // up to here walking whole rows in order is faster

// Where a vector of weight gradients goes: through a rule, to memory, or nowhere.
template <typename R>
struct ApplyRule {
  static constexpr bool kWanted = true;
  R rule;
  float *weight, *state0, *state1;
  MH_INLINE void operator()(Vec grad, Index at, int lanes) const {
    apply_at(rule, grad, weight + at, state0 + at, state1 + at, lanes);
  }
};
struct KeepGradient {
  static constexpr bool kWanted = true;
  float* grad;
  MH_INLINE void operator()(Vec g, Index at, int lanes) const { store_upto(grad + at, lanes, g); }
};
struct Frozen {
  static constexpr bool kWanted = false;
  MH_INLINE void operator()(Vec, Index, int) const {}
};

// Copies a block's panel of w: rows of w may lie a power of two apart, where they would evict each
// other from the cache.
inline void pack_block(const LinearBackward& p, Index row, Index rows, Index column,
                       float* packed) {
  for (Index r = 0; r < rows; ++r) {
    const Index at = (row + r) * p.in + column;
    const Index rest = p.in - column;
    store(packed + r * kPanel, load_upto(p.weight + at, rest));
    store(packed + r * kPanel + kLanes, load_upto(p.weight + at + kLanes, rest - kLanes));
  }
}

// Copies a block's columns of dy to [batch][rows]: one short stream instead of a page per sample.
inline void pack_output_grads(const LinearBackward& p, Index row, Index rows) {
  for (Index b = 0; b < p.batch; ++b) {
    const float* from = p.dy + b * p.lddy + row;
    for (Index r = 0; r < rows; r += kLanes) {
      store_upto(p.dy_block + b * rows + r, rows - r, load_upto(from + r, rows - r));
    }
  }
}

inline void add_input_grad(const LinearBackward& p, Index row, Index rows, Index column,
                           const float* w, Index ldw) {
  float* dx = p.dx_panels + column * p.batch;
  for_tiles<kTileRows>(p.batch, [&](Index b, auto n) {
    constexpr int R = decltype(n)::value;
    Vec acc[R][2];
    float* out = dx + b * kPanel;
    if (row == 0) {
      clear(acc);
    } else {
      MH_UNROLL
      for (int i = 0; i < R; ++i) {
        MH_UNROLL
        for (int v = 0; v < 2; ++v) acc[i][v] = load(out + i * kPanel + v * kLanes);
      }
    }
    add_outer(acc, rows, p.dy_block + b * rows, rows, 1, w, ldw);
    MH_UNROLL
    for (int i = 0; i < R; ++i) {
      MH_UNROLL
      for (int v = 0; v < 2; ++v) store(out + i * kPanel + v * kLanes, acc[i][v]);
    }
  });
}

// Asks for a tile of the next panel while this one is computed: columns are walked across many rows
// at once, more streams than the processor recognises by itself. Into the second-level cache: rows
// a power of two apart would push each other out of the first.
template <int R>
MH_INLINE void prefetch_next(const LinearBackward& p, Index at) {
  constexpr int kSecondLevel = 2;
  MH_UNROLL
  for (int i = 0; i < R; ++i) {
    const Index next = at + i * p.in + kPanel;
    __builtin_prefetch(p.weight + next, 1, kSecondLevel);
    if (p.state0) __builtin_prefetch(p.state0 + next, 1, kSecondLevel);
    if (p.state1) __builtin_prefetch(p.state1 + next, 1, kSecondLevel);
  }
}

template <typename Finish>
MH_INLINE void finish_block(const LinearBackward& p, const Finish& finish, Index row, Index rows,
                            Index column) {
  const float* x = p.x_panels + column * p.batch;
  const Index rest = p.in - column;
  for_tiles<kTileRows>(rows, [&](Index o, auto n) {
    constexpr int R = decltype(n)::value;
    Vec acc[R][2];
    clear(acc);
    const Index at = (row + o) * p.in + column;
    if (p.batch > kStreamBatch) prefetch_next<R>(p, at);
    add_outer(acc, p.batch, p.dy_block + o, 1, rows, x, kPanel);
    if (rest >= kPanel) {
      MH_UNROLL
      for (int i = 0; i < R; ++i) {
        finish(acc[i][0], at + i * p.in, kLanes);
        finish(acc[i][1], at + i * p.in + kLanes, kLanes);
      }
      return;
    }
    const int first = static_cast<int>(smaller(rest, kLanes)),
              second = static_cast<int>(rest) - first;
    for (int i = 0; i < R; ++i) {
      finish(acc[i][0], at + i * p.in, first);
      if (second) finish(acc[i][1], at + i * p.in + kLanes, second);
    }
  });
}

template <typename Finish>
void walk_weights(const LinearBackward& p, const Finish& finish) {
  alignas(64) float packed[kBlockRows * kPanel];
  const bool stream = p.batch <= kStreamBatch;
  const Index block = stream ? kTileRows : kBlockRows;
  for (Index row = 0; row < p.out; row += block) {
    const Index rows = smaller(block, p.out - row);
    pack_output_grads(p, row, rows);
    for (Index column = 0; column < p.in; column += kPanel) {
      if (p.dx_panels) {
        if (stream && p.in - column >= kPanel) {
          add_input_grad(p, row, rows, column, p.weight + row * p.in + column, p.in);
        } else {
          pack_block(p, row, rows, column, packed);
          add_input_grad(p, row, rows, column, packed, kPanel);
        }
      }
      if (Finish::kWanted) finish_block(p, finish, row, rows, column);
    }
  }
}

// A batch of one: no product to form, so rows are walked vector by vector, a few side by side.
template <typename Finish>
void walk_weights_for_one(const LinearBackward& p, const Finish& finish) {
  for_tiles<4>(p.out, [&](Index row, auto n) {
    constexpr int R = decltype(n)::value;
    Vec dy[R];
    MH_UNROLL
    for (int i = 0; i < R; ++i) dy[i] = splat(p.dy[row + i]);
    const auto step = [&](Index column, int lanes) {
      const Index at = row * p.in + column;
      if (p.dx_panels) {
        Vec dx = row ? load(p.dx_panels + column) : zero();
        MH_UNROLL
        for (int i = 0; i < R; ++i) {
          dx = fma(dy[i], load_upto(p.weight + at + i * p.in, lanes), dx);
        }
        store(p.dx_panels + column, dx);
      }
      if (!Finish::kWanted) return;
      const Vec x = load(p.x_panels + column);
      MH_UNROLL
      for (int i = 0; i < R; ++i) finish(dy[i] * x, at + i * p.in, lanes);
    };
    Index column = 0;
    for (; column + kLanes <= p.in; column += kLanes) step(column, kLanes);
    if (column < p.in) step(column, static_cast<int>(p.in - column));
  });
}

template <typename Finish>
void walk(const LinearBackward& p, const Finish& finish) {
  p.batch == 1 ? walk_weights_for_one(p, finish) : walk_weights(p, finish);
}

inline void linear_backward(const LinearBackward& p) {
  if (!p.train) return walk(p, Frozen{});
  if (p.grad) return walk(p, KeepGradient{p.grad});
  with_rule(*p.step, [&](const auto& rule) {
    using R = std::remove_cv_t<std::remove_reference_t<decltype(rule)>>;
    walk(p, ApplyRule<R>{rule, p.weight, p.state0, p.state1});
  });
}

// Rows [batch][ld] to panels and back. The columns past the end of x are zero in the last panel.
inline void pack_panels(Index batch, Index width, const float* x, Index ldx, float* panels) {
  for (Index column = 0; column < width; column += kPanel) {
    float* panel = panels + column * batch;
    for (Index b = 0; b < batch; ++b) {
      const float* row = x + b * ldx + column;
      store(panel + b * kPanel, load_upto(row, width - column));
      store(panel + b * kPanel + kLanes, load_upto(row + kLanes, width - column - kLanes));
    }
  }
}
inline void unpack_panels(Index batch, Index width, const float* panels, float* x, Index ldx) {
  for (Index column = 0; column < width; column += kPanel) {
    const float* panel = panels + column * batch;
    for (Index b = 0; b < batch; ++b) {
      float* row = x + b * ldx + column;
      store_upto(row, width - column, load(panel + b * kPanel));
      store_upto(row + kLanes, width - column - kLanes, load(panel + b * kPanel + kLanes));
    }
  }
}

// sums[o] = sum over the batch of dy[b][o]
inline void column_sums(Index batch, Index width, const float* dy, Index lddy, float* sums) {
  for (Index o = 0; o < width; o += kLanes) {
    Vec total = zero();
    for (Index b = 0; b < batch; ++b) total = total + load_upto(dy + b * lddy + o, width - o);
    store_upto(sums + o, width - o, total);
  }
}

}  // namespace mh::MH_ISA
