// Convolution of one image (or a few) without building the matrix of its windows.
//
// A vector holds neighbouring pixels of an output row. Under tap k of the kernel the pixels it
// needs are neighbours too, tap[k] floats further on in the input, so the product reads the image
// itself:
//
//   output row   |p0 p1 ... p7|              for the 5 x 5 kernel's tap (ky, kx):
//   input row        |p0+kx ... p7+kx|       same row ky lines below, shifted by kx
//
// Images whose rows can't be read so (a horizontal stride, or rows that would waste most of a
// vector) are first laid out by gather_windows (conv_staging.h); the same kernels then run on the
// matrix.
#pragma once

#include "kernels/kernel_table.h"
#include "kernels/tiles.h"

namespace mh::MH_ISA {

template <int R, int V>
MH_INLINE void conv_tile(const ConvShape& s, const float* const (&base)[V], const float* w,
                         Vec (&acc)[R][V]) {
  for (Index k = 0; k < s.depth; ++k) {
    const Index tap = s.taps[k];
    Vec x[V];
    MH_UNROLL
    for (int v = 0; v < V; ++v) x[v] = load(base[v] + tap);
    MH_UNROLL
    for (int i = 0; i < R; ++i) {
      const Vec wk = splat(w[i * s.depth + k]);
      MH_UNROLL
      for (int v = 0; v < V; ++v) acc[i][v] = fma(wk, x[v], acc[i][v]);
    }
  }
}

// V vectors of pixels, all output channels.
template <int V>
MH_INLINE void conv_pixels(const ConvShape& s, const PixelVector* pixels, const float* staged,
                           const float* weight, const float* bias, float* y, bool relu) {
  const float* base[V];
  MH_UNROLL
  for (int v = 0; v < V; ++v) base[v] = staged + pixels[v].in;
  for_tiles<kTileRows>(s.out_channels, [&](Index o, auto n) {
    constexpr int R = decltype(n)::value;
    Vec acc[R][V];
    MH_UNROLL
    for (int i = 0; i < R; ++i) {
      MH_UNROLL
      for (int v = 0; v < V; ++v) acc[i][v] = bias ? splat(bias[o + i]) : zero();
    }
    conv_tile<R, V>(s, base, weight + o * s.depth, acc);
    MH_UNROLL
    for (int i = 0; i < R; ++i) {
      MH_UNROLL
      for (int v = 0; v < V; ++v) {
        const Vec out = relu ? larger(zero(), acc[i][v]) : acc[i][v];
        store_upto(y + (o + i) * s.out_plane + pixels[v].out, pixels[v].lanes, out);
      }
    }
  });
}

inline void conv_forward(const ConvShape& s, const float* staged, const float* weight,
                         const float* bias, float* y, bool relu) {
  Index v = 0;
  for (; v + 2 <= s.vectors; v += 2) {
    conv_pixels<2>(s, s.pixels + v, staged, weight, bias, y, relu);
  }
  if (v < s.vectors) conv_pixels<1>(s, s.pixels + v, staged, weight, bias, y, relu);
}

// grad[o][k] += dot over all pixels of dy[o] and the input under tap k: tiles of 4 taps x 3
// outputs.
template <int K, int O>
MH_INLINE void weight_grad_tile(const ConvShape& s, const Images& staged, const Images& dy, Index k,
                                Index o, float* grad) {
  const Index row = s.vectors * kLanes;
  Vec acc[O][K];
  clear(acc);
  Index taps[K];
  MH_UNROLL
  for (int j = 0; j < K; ++j) taps[j] = s.taps[k + j];
  for (Index image = 0; image < staged.count; ++image) {
    const float* x = staged.data + image * staged.stride;
    const float* d = dy.data + image * dy.stride + o * row;
    for (Index v = 0; v < s.vectors; ++v) {
      const float* at = x + s.pixels[v].in;
      Vec dv[O];
      MH_UNROLL
      for (int i = 0; i < O; ++i) dv[i] = load(d + i * row + v * kLanes);
      MH_UNROLL
      for (int j = 0; j < K; ++j) {
        const Vec xv = load(at + taps[j]);
        MH_UNROLL
        for (int i = 0; i < O; ++i) acc[i][j] = fma(dv[i], xv, acc[i][j]);
      }
    }
  }
  MH_UNROLL
  for (int i = 0; i < O; ++i) {
    float* out = grad + (o + i) * s.depth + k;
    if constexpr (K == 4) {
      add_sums4(acc[i], out);
    } else {
      MH_UNROLL
      for (int j = 0; j < K; ++j) out[j] += sum(acc[i][j]);
    }
  }
}

inline void conv_weight_grad(const ConvShape& s, const Images& staged, const Images& dy,
                             float* grad) {
  for_tiles<4>(s.depth, [&](Index k, auto kn) {
    for_tiles<3>(s.out_channels, [&](Index o, auto on) {
      weight_grad_tile<decltype(kn)::value, decltype(on)::value>(s, staged, dy, k, o, grad);
    });
  });
}

inline void conv_bias_grad(Index channels, Index plane, const Images& dy, float* grad) {
  for (Index o = 0; o < channels; ++o) {
    Vec total = zero();
    for (Index image = 0; image < dy.count; ++image) {
      const float* d = dy.data + image * dy.stride + o * plane;
      for (Index i = 0; i < plane; i += kLanes) total = total + load_upto(d + i, plane - i);
    }
    grad[o] += sum(total);
  }
}

// V vectors of pixels under one tap: acc[c] = sum over o of w[o][c] * dy[o], then added to the
// input gradient where the tap lies. Channels are the tile's rows because their planes don't
// overlap: taps side by side would each wait for the other's store.
template <int V>
MH_INLINE void scatter_pixels(const ConvShape& s, Index v0, const float* dy, const float* w,
                              float* staged_grad) {
  const Index row = s.vectors * kLanes;
  for_tiles<kTileRows>(s.in_channels, [&](Index c, auto n) {
    constexpr int R = decltype(n)::value;
    Vec acc[R][V];
    clear(acc);
    add_outer(acc, s.out_channels, w + c, 1, s.in_channels, dy + v0 * kLanes, row);
    MH_UNROLL
    for (int i = 0; i < R; ++i) {
      MH_UNROLL
      for (int v = 0; v < V; ++v) {
        float* out = staged_grad + (c + i) * s.staged_plane + s.pixels[v0 + v].in;
        store(out, load(out) + acc[i][v]);
      }
    }
  });
}

inline void conv_input_grad(const ConvShape& s, const float* dy, const float* tap_weights,
                            float* staged_grad) {
  for (Index t = 0; t < s.area; ++t) {
    const float* w = tap_weights + t * s.out_channels * s.in_channels;
    float* shifted = staged_grad + s.taps[t];
    Index v = 0;
    for (; v + 2 <= s.vectors; v += 2) scatter_pixels<2>(s, v, dy, w, shifted);
    if (v < s.vectors) scatter_pixels<1>(s, v, dy, w, shifted);
  }
}

}  // namespace mh::MH_ISA
