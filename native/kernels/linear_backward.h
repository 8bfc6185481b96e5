// The backward pass of a linear layer in one walk over its weights.
//
// For a few rows of w (outputs) and a panel of its columns (inputs):
//
//        panel
//   w  |--------|--------|     1. dx[:, panel] += dy[:, rows] w[rows, panel], from the weights as
//      |########|        |        they are
//      |########| rows   |     2. g = dy[:, rows]^T x[:, panel] stays in registers and goes
//      |########|        |        straight through the update rule into w and its state
//
// so the weight gradient is never in memory, and w and its state travel to the core once. x and dx
// are kept in panels [column / kPanel][batch][kPanel], so that a tile reads them in one stream.
// Larger batches take the same walk by lists (linear_by_lists.h), in panels of a strip.
#pragma once

#include <type_traits>

#include "kernels/kernel_table.h"
#include "kernels/linear_by_lists.h"
#include "kernels/tiles.h"
#include "kernels/update.h"

namespace mh::MH_ISA {

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

// Copies the last panel of some rows, which may be narrower.
inline void pack_rows(const LinearBackward& p, Index row, Index rows, Index column,
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
      store_upto(p.scratch + b * rows + r, rows - r, load_upto(from + r, rows - r));
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
    add_outer(acc, rows, p.scratch + b * rows, rows, 1, w, ldw);
    MH_UNROLL
    for (int i = 0; i < R; ++i) {
      MH_UNROLL
      for (int v = 0; v < 2; ++v) store(out + i * kPanel + v * kLanes, acc[i][v]);
    }
  });
}

template <typename Finish>
MH_INLINE void finish_rows(const LinearBackward& p, const Finish& finish, Index row, Index rows,
                           Index column) {
  const float* x = p.x_panels + column * p.batch;
  const Index rest = p.in - column;
  for_tiles<kTileRows>(rows, [&](Index o, auto n) {
    constexpr int R = decltype(n)::value;
    Vec acc[R][2];
    clear(acc);
    const Index at = (row + o) * p.in + column;
    add_outer(acc, p.batch, p.scratch + o, 1, rows, x, kPanel);
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
  alignas(64) float packed[kTileRows * kPanel];
  for (Index row = 0; row < p.out; row += kTileRows) {
    const Index rows = smaller(kTileRows, p.out - row);
    pack_output_grads(p, row, rows);
    for (Index column = 0; column < p.in; column += kPanel) {
      if (p.dx_panels) {
        if (p.in - column >= kPanel) {
          add_input_grad(p, row, rows, column, p.weight + row * p.in + column, p.in);
        } else {
          pack_rows(p, row, rows, column, packed);
          add_input_grad(p, row, rows, column, packed, kPanel);
        }
      }
      if (Finish::kWanted) finish_rows(p, finish, row, rows, column);
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
  if (p.batch >= kWideBatch) return walk_weights_by_lists(p, finish);
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
template <Index kColumns>
void pack_columns(Index batch, Index rows, Index width, const float* x, Index ldx, float* panels) {
  for (Index column = 0; column < width; column += kColumns) {
    float* panel = panels + column * rows;
    for (Index b = 0; b < batch; ++b) {
      const float* row = x + b * ldx + column;
      MH_UNROLL
      for (Index i = 0; i < kColumns; i += kLanes) {
        store(panel + b * kColumns + i, load_upto(row + i, width - column - i));
      }
    }
  }
}
template <Index kColumns>
void unpack_columns(Index batch, Index rows, Index width, const float* panels, float* x,
                    Index ldx) {
  for (Index column = 0; column < width; column += kColumns) {
    const float* panel = panels + column * rows;
    for (Index b = 0; b < batch; ++b) {
      float* row = x + b * ldx + column;
      MH_UNROLL
      for (Index i = 0; i < kColumns; i += kLanes) {
        store_upto(row + i, width - column - i, load(panel + b * kColumns + i));
      }
    }
  }
}
inline void pack_panels(Index batch, Index width, const float* x, Index ldx, float* panels) {
  if (batch < kWideBatch) return pack_columns<kPanel>(batch, batch, width, x, ldx, panels);
  pack_columns<kStrip>(batch, Lists::groups(batch) * kTogether, width, x, ldx, panels);
}
inline void unpack_panels(Index batch, Index width, const float* panels, float* x, Index ldx) {
  if (batch < kWideBatch) return unpack_columns<kPanel>(batch, batch, width, panels, x, ldx);
  unpack_columns<kStrip>(batch, Lists::groups(batch) * kTogether, width, panels, x, ldx);
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
