// A layer over sparse input, whose weight has a row for each feature: forward, and the update of
// the rows that a batch touched.
//
// Rows lie anywhere in a large matrix, so time goes into waiting for memory: rows that come next
// are asked for while one is used.
#pragma once

#include "sparse/active_update.h"

namespace mh::MH_ISA {

constexpr int kRowVectors = 8;      // accumulated in registers at a time
constexpr Index kFeaturesAhead = 8;  // asked for in advance

// Calls body(column, vectors as a constant, lanes of the last) for pieces of a row.
template <typename Body>
MH_INLINE void for_row_pieces(Index width, const Body& body) {
  Index column = 0;
  for (; column + kRowVectors * kLanes <= width; column += kRowVectors * kLanes) {
    body(column, Rows<kRowVectors>{}, kLanes);
  }
  for (; column < width; column += kLanes) {
    body(column, Rows<1>{}, static_cast<int>(smaller(kLanes, width - column)));
  }
}

template <int V>
MH_INLINE void load_piece(Vec (&piece)[V], const float* from, int lanes) {
  MH_UNROLL
  for (int v = 0; v < V; ++v) {
    piece[v] = V > 1 || lanes == kLanes ? load(from + v * kLanes) : load_part(from, lanes);
  }
}

// y = relu(bias + sum over the sample's features of value * row), for `count` samples. `total`
// features lie in columns: those behind the last sample may be asked for.
inline void feature_forward(const RowArrays& rows, const float* bias, const SparseRows& x,
                            Index count, Index total, float* y, Index ldy) {
  for (Index b = 0; b < count; ++b, y += ldy) {
    const Index first = x.offsets[b], end = x.offsets[b + 1];
    for_row_pieces(rows.width, [&](Index column, auto n, int lanes) {
      constexpr int V = decltype(n)::value;
      Vec acc[V], row[V];
      if (bias) {
        load_piece(acc, bias + column, lanes);
      } else {
        MH_UNROLL
        for (int v = 0; v < V; ++v) acc[v] = zero();
      }
      for (Index j = first; j < end; ++j) {
        if (column == 0 && j + kFeaturesAhead < total) {
          prefetch_floats(rows.weight + x.columns[j + kFeaturesAhead] * rows.stride, rows.width);
        }
        const Vec value = splat(x.values ? x.values[j] : 1.0f);
        load_piece(row, rows.weight + x.columns[j] * rows.stride + column, lanes);
        MH_UNROLL
        for (int v = 0; v < V; ++v) acc[v] = fma(value, row[v], acc[v]);
      }
      MH_UNROLL
      for (int v = 0; v < V; ++v) {
        store_upto(y + column + v * kLanes, V > 1 ? kLanes : lanes, larger(zero(), acc[v]));
      }
    });
  }
}

// Updates the rows of some features: the gradient of one is the sum of value * dh[sample] over its
// entries. grads: [count][width] for who collects them, or null.
inline void feature_update(const RowArrays& rows, const RuleStep& step, const FeatureGroups& groups,
                           Index first, Index count, const float* dh, Index ld, float* grads) {
  constexpr Index kAhead = 4;
  with_row_rule(step, [&](const auto& rule) {
    for (Index i = first; i < first + count; ++i) {
      if (i + kAhead < groups.count) {
        prefetch_update(rows, groups.features[i + kAhead] * rows.stride, rows.width);
      }
      const FeatureEntry* const entries = groups.entries + groups.starts[i];
      const Index size = groups.starts[i + 1] - groups.starts[i];
      const Index at = groups.features[i] * rows.stride;
      for_row_pieces(rows.width, [&](Index column, auto n, int lanes) {
        constexpr int V = decltype(n)::value;
        Vec acc[V], piece[V];
        MH_UNROLL
        for (int v = 0; v < V; ++v) acc[v] = zero();
        for (Index j = 0; j < size; ++j) {
          const Vec value = splat(entries[j].value);
          load_piece(piece, dh + entries[j].sample * ld + column, lanes);
          MH_UNROLL
          for (int v = 0; v < V; ++v) acc[v] = fma(value, piece[v], acc[v]);
        }
        MH_UNROLL
        for (int v = 0; v < V; ++v) {
          if (grads) store_upto(grads + i * rows.width + column + v * kLanes, lanes, acc[v]);
          apply_to_row(rule, acc[v], rows, at + column + v * kLanes, lanes);
        }
      });
    }
  });
}

}  // namespace mh::MH_ISA
