// One sample against active rows of its own, as SLIDE was published: each row is used by one
// sample only, so there are no products to block, just rows to walk.
//
// The weights are shared with other threads that update them at the same moment without locks: an
// update of theirs may be lost or half seen, which sparse updates rarely are and descent tolerates
// (SLIDE, section 3.2; Hogwild). A float is never torn on the machines we run on.
#pragma once

#include "sparse/active_update.h"

namespace mh::MH_ISA {

constexpr Index kRowsAhead = 8;
constexpr Index kLine = 64 / sizeof(float);

template <bool kNarrow>
MH_INLINE void dots_of_rows(const RowArrays& weight, const float* bias, const std::int32_t* rows,
                            Index count, const float* x, float* out) {
  const Index width = weight.width;
  for_tiles<4>(count, [&](Index i, auto n) {
    constexpr int R = decltype(n)::value;
    for (Index ahead = i + kRowsAhead; ahead < smaller(count, i + kRowsAhead + R); ++ahead) {
      prefetch_row(weight, rows[ahead]);
    }
    Index row[R];
    Vec acc[R];
    MH_UNROLL
    for (int r = 0; r < R; ++r) {
      row[r] = rows[i + r] * weight.stride;
      acc[r] = zero();
    }
    Index k = 0;
    for (; k + kLanes <= width; k += kLanes) {
      const Vec xv = load(x + k);
      MH_UNROLL
      for (int r = 0; r < R; ++r) {
        acc[r] = fma(load_weights<kNarrow>(weight, row[r] + k, kLanes), xv, acc[r]);
      }
    }
    const int rest = static_cast<int>(width - k);
    for (int r = 0; r < R; ++r) {
      if (rest) {
        const Vec w = load_weights<kNarrow>(weight, row[r] + k, rest);
        acc[r] = fma(w, load_part(x + k, rest), acc[r]);
      }
      out[i + r] = sum(acc[r]) + (bias ? bias[rows[i + r]] : 0.0f);
    }
  });
}

// out[i] = bias[rows[i]] + dot(weight[rows[i]], x)
inline void row_dots(const RowArrays& weight, const float* bias, const std::int32_t* rows,
                     Index count, const float* x, float* out) {
  with_form(weight, [&](auto f) {
    dots_of_rows<decltype(f)::narrow>(weight, bias, rows, count, x, out);
  });
}

template <bool kNarrow>
MH_INLINE void steps_of_rows(const RowArrays& weight, const RowArrays& bias, const RuleStep& step,
                             const std::int32_t* rows, Index count, const float* grads,
                             const float* x, float* dx) {
  const Index width = weight.width;
  with_row_rule(step, [&](const auto& rule) {
    for (Index i = 0; i < count; ++i) {
      const Index soon = rows[smaller(i + kRowsAhead, count - 1)];
      if (bias.weight) prefetch_update(bias, soon, 1);
      const Index at = rows[i] * weight.stride;
      const Vec grad = splat(grads[i]);
      for (Index k = 0; k < width; k += kLanes) {
        // Line by line on the way: all at once would wait for room.
        if (k % kLine == 0) prefetch_update(weight, soon * weight.stride + k, 1);
        const int lanes = static_cast<int>(smaller(kLanes, width - k));
        const Vec w = load_weights<kNarrow>(weight, at + k, lanes);
        store_upto(dx + k, lanes, fma(grad, w, load_upto(dx + k, lanes)));
        apply_to_row<kNarrow>(rule, grad * load_upto(x + k, lanes), weight, at + k, lanes);
      }
      if (bias.weight) apply_to_row(rule, grad, bias, rows[i], 1);
    }
  });
}

// dx += grads[i] * weight[rows[i]], then each row takes its step with grads[i] * x.
inline void row_steps(const RowArrays& weight, const RowArrays& bias, const RuleStep& step,
                      const std::int32_t* rows, Index count, const float* grads, const float* x,
                      float* dx) {
  with_form(weight, [&](auto f) {
    steps_of_rows<decltype(f)::narrow>(weight, bias, step, rows, count, grads, x, dx);
  });
}

}  // namespace mh::MH_ISA
