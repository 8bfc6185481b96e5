// The two products of a wide layer that read its active rows: logits, and the gradient of x.
#pragma once

#include "sparse/active_batch.h"
#include "sparse/narrow_rows.h"
#include "kernels/tiles.h"

namespace mh::MH_ISA {

MH_INLINE float* logits_of(const ActiveBatch& p, Index panel, Index row) {
  return p.logits + (panel * p.stride + row) * kPanel;
}
MH_INLINE const float* weights_of(const ActiveBatch& p, Index column, Index row) {
  return p.w_panels + column * p.stride + row * kPanel;
}

// Turns the samples of one panel into columns; columns of samples past the end are zero.
inline void active_columns(const ActiveBatch& p, Index panel) {
  float* to = p.x_columns + panel * kPanel * p.width;
  const Index first = panel * kPanel, count = smaller(kPanel, p.batch - first);
  for (Index b = 0; b < kPanel; ++b) {
    const float* x = p.x + (first + b) * p.ldx;
    for (Index k = 0; k < p.width; ++k) to[k * kPanel + b] = b < count ? x[k] : 0.0f;
  }
}

// Asks for a whole row that is read soon.
MH_INLINE void prefetch_floats(const float* row, Index width) {
  constexpr Index kLine = 64 / sizeof(float);
  for (Index k = 0; k < width; k += kLine) __builtin_prefetch(row + k, 0, 2);
}

MH_INLINE void prefetch_row(const RowArrays& rows, Index row) {
  const Index at = row * rows.stride;
  if (rows.narrow) {
    constexpr Index kLine = 64 / sizeof(std::uint16_t);
    for (Index k = 0; k < rows.width; k += kLine) __builtin_prefetch(rows.narrow + at + k, 0, 2);
  } else {
    prefetch_floats(rows.weight + at, rows.width);
  }
}

// The vector of a row's weights that begins `at` floats into the weight.
template <bool kNarrow>
MH_INLINE Vec load_weights(const RowArrays& rows, Index at, Index n) {
  return kNarrow ? load_narrow(rows.narrow + at, n) : load_upto(rows.weight + at, n);
}

template <bool kNarrow>
struct Form {
  static constexpr bool narrow = kNarrow;
};

// Calls body with the form of the weight.
template <typename Body>
MH_INLINE void with_form(const RowArrays& rows, const Body& body) {
  rows.narrow ? body(Form<true>{}) : body(Form<false>{});
}

// Copies active rows out of the weight, cut into panels; the last panel is filled with zeros.
template <bool kNarrow>
MH_INLINE void gather_rows(const ActiveBatch& p, Index first, Index count) {
  for (Index i = first; i < first + count; ++i) {
    const Index row = p.rows[i] * p.weight.stride;
    for (Index k = 0; k < p.width; k += kPanel) {
      float* to = p.w_panels + k * p.stride + i * kPanel;
      store(to, load_weights<kNarrow>(p.weight, row + k, p.width - k));
      store(to + kLanes,
            load_weights<kNarrow>(p.weight, row + k + kLanes, p.width - k - kLanes));
    }
  }
}

template <int R>
MH_INLINE void logits_tile(const ActiveBatch& p, Index row, const float* x, float* out) {
  Vec acc[R][2];
  MH_UNROLL
  for (int i = 0; i < R; ++i) {
    acc[i][0] = acc[i][1] = splat(p.bias.weight ? p.bias.weight[p.rows[row + i]] : 0.0f);
  }
  for (Index k = 0; k < p.width; k += kPanel) {
    add_outer(acc, smaller(kPanel, p.width - k), weights_of(p, k, row), kPanel, 1, x + k * kPanel,
              kPanel);
  }
  MH_UNROLL
  for (int i = 0; i < R; ++i) {
    store(out + i * kPanel, acc[i][0]);
    store(out + i * kPanel + kLanes, acc[i][1]);
  }
}

// Logits of `count` (at most kActiveBlock) active rows for all samples. The rows behind them are
// asked for on the way.
inline void active_logits(const ActiveBatch& p, Index first, Index count) {
  with_form(p.weight, [&](auto f) { gather_rows<decltype(f)::narrow>(p, first, count); });
  const Index panels = (p.batch + kPanel - 1) / kPanel;
  const Index after = smaller(kActiveBlock, p.count - first - count);
  for (Index panel = 0; panel < panels; ++panel) {
    for (Index ahead = panel; ahead < after; ahead += panels) {
      prefetch_row(p.weight, p.rows[first + count + ahead]);
    }
    const float* x = p.x_columns + panel * kPanel * p.width;
    for_tiles<kTileRows>(count, [&](Index i, auto n) {
      logits_tile<decltype(n)::value>(p, first + i, x, logits_of(p, panel, first + i));
    });
  }
}

template <int R>
MH_INLINE void input_grad_tile(const ActiveBatch& p, Index sample, Index column, Index row,
                               Index depth) {
  float* out = p.dx_panels + column * p.batch + sample * kPanel;
  Vec acc[R][2];
  MH_UNROLL
  for (int i = 0; i < R; ++i) {
    MH_UNROLL
    for (int v = 0; v < 2; ++v) acc[i][v] = row ? load(out + i * kPanel + v * kLanes) : zero();
  }
  const float* grads = logits_of(p, sample / kPanel, row) + sample % kPanel;
  add_outer(acc, depth, grads, 1, kPanel, weights_of(p, column, row), kPanel);
  MH_UNROLL
  for (int i = 0; i < R; ++i) {
    MH_UNROLL
    for (int v = 0; v < 2; ++v) store(out + i * kPanel + v * kLanes, acc[i][v]);
  }
}

// dh = scale * dx where the ReLU let x through.
inline void finish_input_grad(const ActiveBatch& p, Index sample, Index count, Index column) {
  for (Index b = sample; b < sample + count; ++b) {
    const Vec scale = splat(p.scale[b]);
    const float* dx = p.dx_panels + column * p.batch + b * kPanel;
    MH_UNROLL
    for (int v = 0; v < 2; ++v) {
      const Index k = column + v * kLanes, rest = p.width - k;
      const Vec x = load_upto(p.x + b * p.ldx + k, rest);
      const Vec dh = p.count ? scale * load(dx + v * kLanes) : zero();
      store_upto(p.dh + b * p.ldx + k, rest, keep(above(x, zero()), dh));
    }
  }
}

// The gradient of x for some of the (panel of samples, panel of columns) pairs, panel of samples
// first. Each is summed over the rows in order, whoever computes it.
inline void active_input_grad(const ActiveBatch& p, Index first, Index pairs) {
  constexpr Index kDepth = 256;  // rows whose weights stay in the second-level cache
  const Index columns = (p.width + kPanel - 1) / kPanel;
  const auto each = [&](const auto& body) {
    for (Index pair = first; pair < first + pairs; ++pair) {
      const Index sample = pair / columns * kPanel;
      body(sample, smaller(kPanel, p.batch - sample), pair % columns * kPanel);
    }
  };
  for (Index row = 0; row < p.count; row += kDepth) {
    const Index depth = smaller(kDepth, p.count - row);
    each([&](Index sample, Index count, Index column) {
      for_tiles<kTileRows>(count, [&](Index b, auto n) {
        input_grad_tile<decltype(n)::value>(p, sample + b, column, row, depth);
      });
    });
  }
  each([&](Index sample, Index count, Index column) {
    finish_input_grad(p, sample, count, column);
  });
}

}  // namespace mh::MH_ISA
