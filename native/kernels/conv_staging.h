// Copies that bring an image into the form that the convolution kernels read, and back.
#pragma once

#include "kernels/kernel_table.h"
#include "kernels/vec.h"

namespace mh::MH_ISA {

inline void copy_floats(Index n, const float* from, float* to) {
  for (Index i = 0; i < n; i += kLanes) store_upto(to + i, n - i, load_upto(from + i, n - i));
}
inline void clear_floats(Index n, float* to) {
  for (Index i = 0; i < n; i += kLanes) store_upto(to + i, n - i, zero());
}

// The border of `padded` is zero already and stays so.
inline void pad(const Padding& p, const float* x, float* padded) {
  for (Index plane = 0; plane < p.planes; ++plane) {
    float* to = padded + (plane * p.padded_height + p.above) * p.padded_width + p.left;
    if (p.width == p.padded_width) {
      copy_floats(p.height * p.width, x, to);
    } else {
      for (Index y = 0; y < p.height; ++y)
        copy_floats(p.width, x + y * p.width, to + y * p.padded_width);
    }
    x += p.height * p.width;
  }
}

inline void unpad(const Padding& p, const float* padded, float* x) {
  for (Index plane = 0; plane < p.planes; ++plane) {
    const float* from = padded + (plane * p.padded_height + p.above) * p.padded_width + p.left;
    for (Index y = 0; y < p.height; ++y)
      copy_floats(p.width, from + y * p.padded_width, x + y * p.width);
    x += p.height * p.width;
  }
}

// A row of an output plane under one tap: `out_width` floats, stride_x apart in the input.
inline void gather_row(const Windows& w, const float* from, float* to) {
  if (w.stride_x == 1) {
    // Whole vectors: what is written too far is the next row's place, which is written after it.
    for (Index x = 0; x < w.out_width; x += kLanes) store(to + x, load(from + x));
  } else {
    for (Index x = 0; x < w.out_width; ++x) to[x] = from[x * w.stride_x];
  }
}
inline void scatter_row(const Windows& w, const float* from, float* to) {
  for (Index x = 0; x < w.out_width; ++x) to[x * w.stride_x] += from[x];
}

// Calls body(matrix row, input) for every tap of every channel.
template <typename Body>
MH_INLINE void for_each_tap(const Windows& w, const Body& body) {
  Index k = 0;
  for (Index c = 0; c < w.channels; ++c) {
    for (Index ky = 0; ky < w.kernel_height; ++ky) {
      for (Index kx = 0; kx < w.kernel_width; ++kx, ++k) {
        body(k * w.row, c * w.plane + ky * w.dilation_y * w.width + kx * w.dilation_x);
      }
    }
  }
}

// `matrix` has slack. The lanes behind the last pixel hold no meaning: dy is zero there.
inline void gather_windows(const Windows& w, const float* x, float* matrix) {
  const Index pixels = w.out_height * w.out_width;
  for_each_tap(w, [&](Index row, Index start) {
    for (Index y = 0; y < w.out_height; ++y) {
      gather_row(w, x + start + y * w.stride_y * w.width, matrix + row + y * w.out_width);
    }
    clear_floats(w.row - pixels, matrix + row + pixels);
  });
}

// Adds every window back to where it came from.
inline void scatter_windows(const Windows& w, const float* matrix, float* x) {
  for_each_tap(w, [&](Index row, Index start) {
    for (Index y = 0; y < w.out_height; ++y) {
      scatter_row(w, matrix + row + y * w.out_width, x + start + y * w.stride_y * w.width);
    }
  });
}

// Output gradients from planes of pixels to whole vectors, zero in lanes without a pixel.
inline void spread_pixels(const ConvShape& s, const float* dy, float* vectors) {
  for (Index o = 0; o < s.out_channels; ++o) {
    const float* plane = dy + o * s.out_plane;
    for (Index v = 0; v < s.vectors; ++v, vectors += kLanes) {
      store(vectors, load_upto(plane + s.pixels[v].out, s.pixels[v].lanes));
    }
  }
}

}  // namespace mh::MH_ISA
