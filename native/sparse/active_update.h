// The weight gradient of active rows, from the product's registers straight through the rule.
//
// Each touched row of the weight and its states is read and written once per batch, by one thread:
// nothing races, and no gradient is ever in memory, unless somebody collects it.
#pragma once

#include "sparse/active_products.h"
#include "kernels/update.h"

namespace mh::MH_ISA {

// The rules that follow rows (optim: Rule.sparse_refusal): the others would move rows that no
// gradient touches.
template <typename Body>
MH_INLINE void with_row_rule(const RuleStep& step, const Body& body) {
  switch (step.kind) {
    case RuleKind::kAdagrad:
      return body(Adagrad(step));
    case RuleKind::kAdam:
      return body(AdamLike<false>(step));
    default:
      return body(Sgd(step));
  }
}

// One vector of one row.
template <bool kNarrow = false, typename R>
MH_INLINE void apply_to_row(const R& rule, Vec grad, const RowArrays& rows, Index at, int lanes) {
  float* state0 = R::kStates > 0 ? rows.state0 + at : nullptr;
  float* state1 = R::kStates > 1 ? rows.state1 + at : nullptr;
  if constexpr (!kNarrow) {
    apply_at(rule, grad, rows.weight + at, state0, state1, lanes);
  } else {
    Vec w = load_narrow(rows.narrow + at, lanes);
    Vec s0 = state0 ? load_upto(state0, lanes) : zero();
    Vec s1 = state1 ? load_upto(state1, lanes) : zero();
    rule(grad, w, s0, s1);
    store_narrow(rows.narrow + at, lanes, w, at, rows.salt);
    if (state0) store_upto(state0, lanes, s0);
    if (state1) store_upto(state1, lanes, s1);
  }
}

// Asks for `floats` of a row and its states that are updated soon.
MH_INLINE void prefetch_update(const RowArrays& rows, Index at, Index floats) {
  constexpr Index kLine = 64 / sizeof(float);
  if (rows.narrow) {
    for (Index k = at; k < at + floats; k += 2 * kLine) __builtin_prefetch(rows.narrow + k, 1, 2);
  }
  for (Index k = at; k < at + floats; k += kLine) {
    if (!rows.narrow) __builtin_prefetch(rows.weight + k, 1, 2);
    if (rows.state0) __builtin_prefetch(rows.state0 + k, 1, 2);
    if (rows.state1) __builtin_prefetch(rows.state1 + k, 1, 2);
  }
}

// Multiplies the weights of each row by its factor. The states stay.
inline void scale_rows(const RowArrays& arrays, const std::int32_t* rows, Index count,
                       const float* factors) {
  with_form(arrays, [&](auto f) {
    constexpr bool kNarrow = decltype(f)::narrow;
    for (Index i = 0; i < count; ++i) {
      const Index at = rows[i] * arrays.stride;
      for (Index k = 0; k < arrays.width; k += kLanes) {
        const int lanes = static_cast<int>(smaller(kLanes, arrays.width - k));
        const Vec w = splat(factors[i]) * load_weights<kNarrow>(arrays, at + k, lanes);
        if constexpr (kNarrow) {
          store_narrow(arrays.narrow + at + k, lanes, w, at + k, ~arrays.salt);
        } else {
          store_upto(arrays.weight + at + k, lanes, w);
        }
      }
    }
  });
}

template <int R, bool kNarrow, typename Rule>
MH_INLINE void update_tile(const ActiveBatch& p, const Rule& rule, Index row, Index column) {
  Vec acc[R][2];
  clear(acc);
  const float* x = p.x_panels + column * p.batch;
  for (Index b = 0; b < p.batch; b += kPanel) {
    add_outer(acc, smaller(kPanel, p.batch - b), logits_of(p, b / kPanel, row), kPanel, 1,
              x + b * kPanel, kPanel);
  }
  const Index rest = p.width - column;
  for (int i = 0; i < R; ++i) {
    const Index at = p.rows[row + i] * p.weight.stride + column;
    MH_UNROLL
    for (int v = 0; v < 2; ++v) {
      const Index left = rest - v * kLanes;
      if (left <= 0) break;
      const int lanes = static_cast<int>(smaller(left, kLanes));
      if (p.weight_grads) {
        float* kept = p.weight_grads + (row + i) * p.width + column + v * kLanes;
        store_upto(kept, lanes, acc[i][v]);
      }
      apply_to_row<kNarrow>(rule, acc[i][v], p.weight, at + v * kLanes, lanes);
    }
  }
}

// The bias of a row has a gradient of one number.
template <typename Rule>
MH_INLINE void update_bias(const ActiveBatch& p, const Rule& rule, Index row) {
  Vec total = zero();
  for (Index b = 0; b < p.batch; b += kPanel) {
    const float* grads = logits_of(p, b / kPanel, row);
    total = fma(load(grads), load(p.scale + b), total);
    total = fma(load(grads + kLanes), load(p.scale + b + kLanes), total);
  }
  const float grad = sum(total);
  if (p.bias_grads) p.bias_grads[row] = grad;
  apply_to_row(rule, splat(grad), p.bias, p.rows[row], 1);
}

// Updates `count` (at most kActiveBlock) active rows. The rows behind them are asked for on the
// way.
template <bool kNarrow>
MH_INLINE void update_block(const ActiveBatch& p, const RuleStep& step, Index first, Index count) {
  const Index after = smaller(count, p.count - first - count);
  with_row_rule(step, [&](const auto& rule) {
    for (Index column = 0; column < p.width; column += kPanel) {
      const Index floats = smaller(kPanel, p.width - column);
      for_tiles<kTileRows>(count, [&](Index i, auto n) {
        constexpr int R = decltype(n)::value;
        for (Index ahead = i; ahead < smaller(i + R, after); ++ahead) {
          const Index row = p.rows[first + count + ahead];
          prefetch_update(p.weight, row * p.weight.stride + column, floats);
        }
        update_tile<R, kNarrow>(p, rule, first + i, column);
      });
    }
    if (!p.bias.weight) return;
    for (Index i = 0; i < after; ++i) prefetch_update(p.bias, p.rows[first + count + i], 1);
    for (Index i = first; i < first + count; ++i) update_bias(p, rule, i);
  });
}

inline void active_update(const ActiveBatch& p, const RuleStep& step, Index first, Index count) {
  with_form(p.weight, [&](auto f) { update_block<decltype(f)::narrow>(p, step, first, count); });
}

}  // namespace mh::MH_ISA
