// Convolution with 3 x 3 taps and stride 1 by a quarter of the multiplications: Winograd's minimal
// filtering (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2015).
//
// The image is cut into tiles of 4 x 4 outputs, each of which reads a window of 6 x 6 inputs. A
// tile is a product of polynomials, and polynomials are multiplied point by point once their values
// at enough points are known: six each way, 36 products instead of 4 x 4 x 9 = 144. Channels can be
// summed before the way back, so that the bulk of the work is 36 matrix products:
//
//   windows  --B-->  [36][tile][in]  --+
//                                      +--> [36][tile][out]  --A-->  outputs
//   weights  --G-->  [36][in][out]   --+
//
// The weight's gradient goes the other way through the same maps:
//
//   errors   --A-->  [36][tile][out] --+
//                                      +--> [36][out][in]    --G-->  gradient
//   windows  --B-->  [36][tile][in]  --+
//
// The maps work on a vector of channels at a time. Each output is summed over channels in the same
// order however many images there are, so it does not depend on what else is in the batch.
#pragma once

#include "kernels/kernel_table.h"
#include "kernels/tiles.h"

namespace mh::MH_ISA {

// The points: 0, p, -p, q, -q and infinity. Lavin and Gray take 1 and 2; these round less.
constexpr float kP = 0.625f, kQ = 1.5f;
constexpr float kP2 = kP * kP, kQ2 = kQ * kQ;
constexpr float kAt0 = kP2 * kQ2, kAtP = 2.0f * kP2 * (kP2 - kQ2), kAtQ = 2.0f * kQ2 * (kQ2 - kP2);

// Each map turns a line of values, `step` apart, into another; below they are applied to the
// columns of a square and then to its rows.
struct WindowMap {
  static constexpr int kFrom = 6, kTo = 6;
  static MH_INLINE void line(const Vec* d, Vec* out, int step) {
    const Vec even_p = fma(splat(-kQ2), d[2 * step], d[4 * step]);
    const Vec even_q = fma(splat(-kP2), d[2 * step], d[4 * step]);
    const Vec odd_p = fma(splat(-kQ2), d[step], d[3 * step]);
    const Vec odd_q = fma(splat(-kP2), d[step], d[3 * step]);
    const Vec low = fma(splat(-kP2 - kQ2), d[2 * step], d[4 * step]);
    const Vec high = fma(splat(-kP2 - kQ2), d[3 * step], d[5 * step]);
    out[0] = fma(splat(kAt0), d[0], low);
    out[step] = fma(splat(kP), odd_p, even_p);
    out[2 * step] = fma(splat(-kP), odd_p, even_p);
    out[3 * step] = fma(splat(kQ), odd_q, even_q);
    out[4 * step] = fma(splat(-kQ), odd_q, even_q);
    out[5 * step] = fma(splat(kAt0), d[step], high);
  }
};

struct WeightMap {
  static constexpr int kFrom = 3, kTo = 6;
  static MH_INLINE void line(const Vec* g, Vec* out, int step) {
    const Vec even_p = splat(1.0f / kAtP) * fma(splat(kP2), g[2 * step], g[0]);
    const Vec even_q = splat(1.0f / kAtQ) * fma(splat(kQ2), g[2 * step], g[0]);
    out[0] = splat(1.0f / kAt0) * g[0];
    out[step] = fma(splat(kP / kAtP), g[step], even_p);
    out[2 * step] = fma(splat(-kP / kAtP), g[step], even_p);
    out[3 * step] = fma(splat(kQ / kAtQ), g[step], even_q);
    out[4 * step] = fma(splat(-kQ / kAtQ), g[step], even_q);
    out[5 * step] = g[2 * step];
  }
};

struct OutputMap {
  static constexpr int kFrom = 6, kTo = 4;
  static MH_INLINE void line(const Vec* m, Vec* out, int step) {
    const Vec even_p = m[step] + m[2 * step], odd_p = m[step] - m[2 * step];
    const Vec even_q = m[3 * step] + m[4 * step], odd_q = m[3 * step] - m[4 * step];
    out[0] = m[0] + (even_p + even_q);
    out[step] = fma(splat(kP), odd_p, splat(kQ) * odd_q);
    out[2 * step] = fma(splat(kP2), even_p, splat(kQ2) * even_q);
    out[3 * step] = fma(splat(kP * kP2), odd_p, fma(splat(kQ * kQ2), odd_q, m[5 * step]));
  }
};

struct ErrorMap {  // OutputMap, turned
  static constexpr int kFrom = 4, kTo = 6;
  static MH_INLINE void line(const Vec* e, Vec* out, int step) {
    const Vec even_p = fma(splat(kP2), e[2 * step], e[0]);
    const Vec even_q = fma(splat(kQ2), e[2 * step], e[0]);
    const Vec odd_p = fma(splat(kP2), e[3 * step], e[step]);
    const Vec odd_q = fma(splat(kQ2), e[3 * step], e[step]);
    out[0] = e[0];
    out[step] = fma(splat(kP), odd_p, even_p);
    out[2 * step] = fma(splat(-kP), odd_p, even_p);
    out[3 * step] = fma(splat(kQ), odd_q, even_q);
    out[4 * step] = fma(splat(-kQ), odd_q, even_q);
    out[5 * step] = e[3 * step];
  }
};

struct GradientMap {  // WeightMap, turned
  static constexpr int kFrom = 6, kTo = 3;
  static MH_INLINE void line(const Vec* m, Vec* out, int step) {
    const Vec even_p = splat(1.0f / kAtP) * (m[step] + m[2 * step]);
    const Vec even_q = splat(1.0f / kAtQ) * (m[3 * step] + m[4 * step]);
    const Vec odd_p = m[step] - m[2 * step], odd_q = m[3 * step] - m[4 * step];
    out[0] = fma(splat(1.0f / kAt0), m[0], even_p + even_q);
    out[step] = fma(splat(kP / kAtP), odd_p, splat(kQ / kAtQ) * odd_q);
    out[2 * step] = fma(splat(kP2), even_p, fma(splat(kQ2), even_q, m[5 * step]));
  }
};

// The squares lie in the corner of 6 x 6.
template <typename Map>
MH_INLINE void map_square(Vec (&square)[36]) {
  Vec half[36];
  MH_UNROLL
  for (int x = 0; x < Map::kFrom; ++x) Map::line(square + x, half + x, 6);
  MH_UNROLL
  for (int y = 0; y < Map::kTo; ++y) Map::line(half + 6 * y, square + 6 * y, 1);
}

MH_INLINE Index winograd_tiles(const Winograd& s) { return s.tiles_down * s.tiles_across; }

// `rows` rows of kLanes planes, from `top` on, as [row][x][lane]; zero where there is no image.
MH_INLINE void read_strip(const float* planes, Index height, Index width, Index top, Index left,
                          Index rows, Index strip_width, float* strip) {
  for (Index row = 0; row < rows; ++row, strip += strip_width * kLanes) {
    const Index y = top + row;
    const bool inside = y >= 0 && y < height;
    const Index begin = inside ? left : strip_width;
    for (Index x = 0; x < begin; ++x) store(strip + x * kLanes, zero());
    if (!inside) continue;
    // Whole vectors: what is written too far is overwritten below, or by the next row.
    for (Index x = 0; x < width; x += kLanes) {
      Vec v[kLanes];
      load_turned(planes + y * width + x, height * width, v);
      MH_UNROLL
      for (int i = 0; i < kLanes; ++i) store(strip + (left + x + i) * kLanes, v[i]);
    }
    for (Index x = left + width; x < strip_width; ++x) store(strip + x * kLanes, zero());
  }
}

// Calls body(c) for blocks of kLanes channels; the last one may overlap the one before.
template <typename Body>
MH_INLINE void for_channels(Index channels, const Body& body) {
  for (Index c = 0; c < channels; c += kLanes) body(smaller(c, channels - kLanes));
}

// Squares of images to [36][tile][channel].
template <typename Map>
MH_INLINE void map_images(const Winograd& s, const Images& images, Index channels, Index height,
                          Index width, Index above, Index left, float* strip, float* tiles) {
  constexpr int kSide = Map::kFrom;
  const Index row = winograd_row(channels), strip_width = 4 * s.tiles_across + kSide - 4;
  const Index slab = winograd_slab(images.count * winograd_tiles(s), channels);
  for (Index image = 0; image < images.count; ++image) {
    const float* planes = images.data + image * images.stride;
    for (Index down = 0; down < s.tiles_down; ++down, tiles += s.tiles_across * row) {
      for_channels(channels, [&](Index c) {
        read_strip(planes + c * height * width, height, width, 4 * down - above, left, kSide,
                   strip_width, strip);
        for (Index across = 0; across < s.tiles_across; ++across) {
          Vec v[36];
          MH_UNROLL
          for (int i = 0; i < kSide * kSide; ++i) {
            const int y = i / kSide, x = i % kSide;
            v[6 * y + x] = load(strip + (y * strip_width + 4 * across + x) * kLanes);
          }
          map_square<Map>(v);
          float* to = tiles + across * row + c;
          MH_UNROLL
          for (int i = 0; i < 36; ++i) store(to + i * slab, v[i]);
        }
      });
    }
  }
}

// [36][tile][in] times the weights is [36][tile][out].
inline void winograd_products(const Winograd& s, Index tiles, const float* windows,
                              const float* weights, float* sums) {
  const Index row = winograd_row(s.in_channels), out_row = winograd_row(s.out_channels);
  const Index slab = winograd_slab(tiles, s.in_channels);
  const Index out_slab = winograd_slab(tiles, s.out_channels);
  for (int i = 0; i < 36; ++i) {
    const float* w = weights + i * winograd_weight_slab(s.in_channels, s.out_channels);
    for (Index o = 0; o < s.out_channels; o += kPanel, w += s.in_channels * kPanel) {
      for_tiles<kTileRows>(tiles, [&](Index t, auto n) {
        constexpr int R = decltype(n)::value;
        Vec acc[R][2];
        clear(acc);
        add_outer(acc, s.in_channels, windows + i * slab + t * row, row, 1, w, kPanel);
        float* to = sums + i * out_slab + t * out_row + o;
        MH_UNROLL
        for (int r = 0; r < R; ++r) {
          store(to + r * out_row, acc[r][0]);
          store(to + r * out_row + kLanes, acc[r][1]);
        }
      });
    }
  }
}

// [36][tile][out] to images.
inline void winograd_outputs(const Winograd& s, const float* sums, const float* bias, bool relu,
                             float* strip, const Images& y) {
  const Index row = winograd_row(s.out_channels), width = 4 * s.tiles_across;
  const Index slab = winograd_slab(y.count * winograd_tiles(s), s.out_channels);
  const Index plane = s.out_height * s.out_width;
  for (Index image = 0; image < y.count; ++image) {
    for (Index down = 0; down < s.tiles_down; ++down, sums += s.tiles_across * row) {
      for_channels(s.out_channels, [&](Index o) {
        const Vec shift = bias ? load(bias + o) : zero();
        for (Index across = 0; across < s.tiles_across; ++across) {
          Vec v[36];
          MH_UNROLL
          for (int i = 0; i < 36; ++i) v[i] = load(sums + i * slab + across * row + o);
          map_square<OutputMap>(v);
          MH_UNROLL
          for (int i = 0; i < 16; ++i) {
            const Vec sum = v[6 * (i / 4) + i % 4] + shift;
            store(strip + (i / 4 * width + 4 * across + i % 4) * kLanes,
                  relu ? larger(zero(), sum) : sum);
          }
        }
        float* to = y.data + image * y.stride + o * plane + 4 * down * s.out_width;
        const Index rows = smaller(4, s.out_height - 4 * down);
        for (Index r = 0; r < rows; ++r, to += s.out_width) {
          for (Index x = 0; x < s.out_width; x += kLanes) {
            Vec pixels[kLanes];
            load_turned(strip + (r * width + x) * kLanes, kLanes, pixels);
            MH_UNROLL
            for (int i = 0; i < kLanes; ++i) {
              store_upto(to + i * plane + x, s.out_width - x, pixels[i]);
            }
          }
        }
      });
    }
  }
}

inline void winograd_forward(const Winograd& s, const Images& x, const float* weights,
                             const float* bias, bool relu, float* scratch, const Images& y) {
  const Index tiles = x.count * winograd_tiles(s);
  float* windows = scratch + winograd_strip(s.tiles_across);
  float* sums = windows + 36 * winograd_slab(tiles, s.in_channels);
  map_images<WindowMap>(s, x, s.in_channels, s.height, s.width, s.above, s.left, scratch, windows);
  winograd_products(s, tiles, windows, weights, sums);
  winograd_outputs(s, sums, bias, relu, scratch, y);
}

// Weight (o, c) lies at o * out_step + c * in_step, its taps one after another, or the last one
// first.
inline void winograd_weights(const Winograd& s, const float* weight, Index out_step, Index in_step,
                             bool backwards, float* mapped) {
  const Index slab = winograd_weight_slab(s.in_channels, s.out_channels);
  for (Index o = 0; o < s.out_channels; o += kLanes) {
    const Index lanes = smaller(kLanes, s.out_channels - o);
    float* to = mapped + o / kPanel * kPanel * s.in_channels + o % kPanel;
    for (Index c = 0; c < s.in_channels; ++c, to += kPanel) {
      float taps[9][kLanes] = {};
      for (Index i = 0; i < lanes; ++i) {
        const float* from = weight + (o + i) * out_step + c * in_step;
        MH_UNROLL
        for (int t = 0; t < 9; ++t) taps[t][i] = from[backwards ? 8 - t : t];
      }
      Vec v[36];
      MH_UNROLL
      for (int t = 0; t < 9; ++t) v[6 * (t / 3) + t % 3] = load(taps[t]);
      map_square<WeightMap>(v);
      MH_UNROLL
      for (int i = 0; i < 36; ++i) store(to + i * slab, v[i]);
    }
  }
}

// The products of the weight's gradient, [36][out][in]; `add` to those of images before.
inline void winograd_weight_grad(const Winograd& s, const Images& x, const Images& dy, bool add,
                                 float* scratch, float* sums) {
  const Index tiles = x.count * winograd_tiles(s);
  const Index in_row = winograd_row(s.in_channels), out_row = winograd_row(s.out_channels);
  const Index in_slab = winograd_slab(tiles, s.in_channels);
  const Index out_slab = winograd_slab(tiles, s.out_channels);
  const Index slab = winograd_slab(s.out_channels, s.in_channels);
  float* windows = scratch + winograd_strip(s.tiles_across);
  float* errors = windows + 36 * in_slab;
  map_images<WindowMap>(s, x, s.in_channels, s.height, s.width, s.above, s.left, scratch, windows);
  map_images<ErrorMap>(s, dy, s.out_channels, s.out_height, s.out_width, 0, 0, scratch, errors);
  for (int i = 0; i < 36; ++i) {
    for (Index c = 0; c < s.in_channels; c += kPanel) {
      for_tiles<kTileRows>(s.out_channels, [&](Index o, auto n) {
        constexpr int R = decltype(n)::value;
        float* to = sums + i * slab + o * in_row + c;
        Vec acc[R][2];
        MH_UNROLL
        for (int r = 0; r < R; ++r) {
          acc[r][0] = add ? load(to + r * in_row) : zero();
          acc[r][1] = add ? load(to + r * in_row + kLanes) : zero();
        }
        add_outer(acc, tiles, errors + i * out_slab + o, 1, out_row, windows + i * in_slab + c,
                  in_row);
        MH_UNROLL
        for (int r = 0; r < R; ++r) {
          store(to + r * in_row, acc[r][0]);
          store(to + r * in_row + kLanes, acc[r][1]);
        }
      });
    }
  }
}

inline void winograd_gradient(const Winograd& s, const float* sums, float* grad) {
  const Index row = winograd_row(s.in_channels);
  const Index slab = winograd_slab(s.out_channels, s.in_channels);
  for (Index o = 0; o < s.out_channels; ++o) {
    for_channels(s.in_channels, [&](Index c) {
      Vec v[36];
      MH_UNROLL
      for (int i = 0; i < 36; ++i) v[i] = load(sums + i * slab + o * row + c);
      map_square<GradientMap>(v);
      float taps[9][kLanes];
      MH_UNROLL
      for (int t = 0; t < 9; ++t) store(taps[t], v[6 * (t / 3) + t % 3]);
      float* to = grad + (o * s.in_channels + c) * 9;
      for (int i = 0; i < kLanes; ++i, to += 9) {
        MH_UNROLL
        for (int t = 0; t < 9; ++t) to[t] = taps[t][i];
      }
    });
  }
}

}  // namespace mh::MH_ISA
