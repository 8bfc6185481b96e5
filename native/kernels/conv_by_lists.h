// The backward pass of a convolution from the numbers of dy that are not zero: behind a ReLU about
// half of them are left, behind a max pool with a ReLU less than a fifth.
//
// Images and weights are turned for it, so that a vector holds kLanes input channels of one pixel
// or one tap, the pixels of an image (with its border of zeros) row after row:
//
//   dy[o], listed             turned x or dx, one block of channels
//   (value, where) ...   ->   . . . . . . .
//                             . a b c . . .      `where` is the first pixel of the window: its
//                             . d e f . . .      rows of taps are vectors side by side
//                             . g h i . . .
//
//   weight gradient   sums of o's taps in registers:   a..i += value * x's window
//   input gradient    o's weights in registers:        dx's window += value * a..i
//
// A block of the turned images stays in the first-level cache while all outputs are walked. A zero
// times an infinity or a NaN is passed over.
#pragma once

#include "kernels/kernel_table.h"
#include "kernels/tiles.h"

namespace mh::MH_ISA {

inline void list_pixels(const ListedConv& p, const Images& dy, const PixelLists& lists) {
  Lanes32 steps = {};
  for (int i = 0; i < kLanes; ++i) steps[i] = static_cast<std::uint32_t>(i * p.window_right);
  Index count = 0;
  for (Index o = 0; o < p.out_channels; ++o) {
    for (Index image = 0; image < dy.count; ++image) {
      const float* d = dy.data + image * dy.stride + o * p.out_height * p.out_width;
      for (Index y = 0; y < p.out_height; ++y, d += p.out_width) {
        for (Index x = 0; x < p.out_width; x += kLanes) {
          const Index at = image * p.turned_image + y * p.window_down + x * p.window_right;
          count += store_nonzeros(lists.values + count, lists.windows + count,
                                  load_upto(d + x, p.out_width - x),
                                  steps + static_cast<std::uint32_t>(at));
        }
      }
    }
    lists.ends[o] = count;
  }
}

// Calls body(pixel of the turned image, pixel of the plane, how many) for up to kLanes neighbours.
template <typename Body>
MH_INLINE void for_neighbours(const ListedConv& p, const Body& body) {
  for (Index y = 0; y < p.in_height; ++y) {
    for (Index x = 0; x < p.in_width; x += kLanes) {
      body(((y + p.above) * p.turned_width + p.left + x) * kLanes, y * p.in_width + x,
           smaller(kLanes, p.in_width - x));
    }
  }
}

// The border of `turned` is zero already and stays so; lanes without a channel have no meaning.
inline void turn_images(const ListedConv& p, Index channel, const Images& x, float* turned) {
  const Index plane = p.in_height * p.in_width, channels = smaller(kLanes, p.in_channels - channel);
  for (Index image = 0; image < x.count; ++image, turned += p.turned_image) {
    const float* from = x.data + image * x.stride + channel * plane;
    for_neighbours(p, [&](Index to, Index at, Index pixels) {
      Vec columns[kLanes];
      if (channels == kLanes) {
        load_turned(from + at, plane, columns);
      } else {
        alignas(64) float corner[kLanes * kLanes] = {};
        for (Index c = 0; c < channels; ++c) store(corner + c * kLanes, load(from + c * plane + at));
        load_turned(corner, kLanes, columns);
      }
      for (Index i = 0; i < pixels; ++i) store(turned + to + i * kLanes, columns[i]);
    });
  }
}

inline void turn_images_back(const ListedConv& p, Index channel, const float* turned,
                             const Images& dx) {
  const Index plane = p.in_height * p.in_width, channels = smaller(kLanes, p.in_channels - channel);
  for (Index image = 0; image < dx.count; ++image, turned += p.turned_image) {
    float* to = dx.data + image * dx.stride + channel * plane;
    for_neighbours(p, [&](Index from, Index at, Index pixels) {
      Vec rows[kLanes];
      load_turned(turned + from, kLanes, rows);
      for (Index c = 0; c < channels; ++c) store_upto(to + c * plane + at, pixels, rows[c]);
    });
  }
}

// R rows of K taps, of all outputs; `grad` is [out][kernel height][K][lanes].
template <int R, int K>
MH_INLINE void add_listed_weight_grads(const ListedConv& p, const PixelLists& lists,
                                       const float* turned, float* grad) {
  Index i = 0;
  const Index tap_row = p.tap_row;
  for (Index o = 0; o < p.out_channels; ++o, grad += p.kernel_height * K * kLanes) {
    Vec sums[R][K];
    MH_UNROLL
    for (int t = 0; t < R * K; ++t) sums[t / K][t % K] = load(grad + t * kLanes);
    for (const Index end = lists.ends[o]; i < end; ++i) {
      const float* taps = turned + lists.windows[i];
      const Vec value = splat(lists.values[i]);
      MH_UNROLL
      for (int r = 0; r < R; ++r, taps += tap_row) {
        asm("" : "+r"(taps));  // one pointer a row
        MH_UNROLL
        for (int j = 0; j < K; ++j) sums[r][j] = fma(value, load(taps + j * kLanes), sums[r][j]);
      }
    }
    MH_UNROLL
    for (int t = 0; t < R * K; ++t) store(grad + t * kLanes, sums[t / K][t % K]);
  }
}

template <int R, int K>
MH_INLINE void add_listed_input_grads(const ListedConv& p, const PixelLists& lists,
                                      const float* weight, float* turned) {
  Index i = 0;
  const Index tap_row = p.tap_row;
  for (Index o = 0; o < p.out_channels; ++o, weight += p.kernel_height * K * kLanes) {
    Vec w[R][K];
    MH_UNROLL
    for (int t = 0; t < R * K; ++t) w[t / K][t % K] = load(weight + t * kLanes);
    for (const Index end = lists.ends[o]; i < end; ++i) {
      float* taps = turned + lists.windows[i];
      const Vec value = splat(lists.values[i]);
      MH_UNROLL
      for (int r = 0; r < R; ++r, taps += tap_row) {
        asm("" : "+r"(taps));
        MH_UNROLL
        for (int j = 0; j < K; ++j) {
          store(taps + j * kLanes, fma(value, w[r][j], load(taps + j * kLanes)));
        }
      }
    }
  }
}

// Calls body(first row, Rows<rows>, Rows<columns>) for tiles of taps that fill the registers.
template <typename Body>
MH_INLINE void for_tap_rows(const ListedConv& p, const Body& body) {
  constexpr int kMost = 12;
  if (p.kernel_width == 3) {
    for_tiles<kMost / 3>(p.kernel_height, [&](Index row, auto n) { body(row, n, Rows<3>{}); });
  } else {
    for_tiles<kMost / 5>(p.kernel_height, [&](Index row, auto n) { body(row, n, Rows<5>{}); });
  }
}

inline void listed_weight_grad(const ListedConv& p, const PixelLists& lists, const Images& x,
                               float* turned, float* grad) {
  for (Index c = 0; c < p.in_channels; c += kLanes, grad += p.turned_weights) {
    turn_images(p, c, x, turned);
    for_tap_rows(p, [&](Index row, auto rows, auto columns) {
      constexpr int R = decltype(rows)::value, K = decltype(columns)::value;
      add_listed_weight_grads<R, K>(p, lists, turned + row * p.tap_row, grad + row * K * kLanes);
    });
  }
}

inline void listed_input_grad(const ListedConv& p, const PixelLists& lists, const float* weight,
                              float* turned, const Images& dx) {
  for (Index c = 0; c < p.in_channels; c += kLanes, weight += p.turned_weights) {
    for (Index i = 0; i < dx.count * p.turned_image; i += kLanes) store(turned + i, zero());
    for_tap_rows(p, [&](Index row, auto rows, auto columns) {
      constexpr int R = decltype(rows)::value, K = decltype(columns)::value;
      add_listed_input_grads<R, K>(p, lists, weight + row * K * kLanes, turned + row * p.tap_row);
    });
    turn_images_back(p, c, turned, dx);
  }
}

}  // namespace mh::MH_ISA
