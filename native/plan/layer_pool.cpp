#include "plan/layer_pool.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace mh {
namespace {

Index extent(Index size, const PoolGeometry& g, int axis) {
  const Index padded = size + 2 * g.padding[axis];
  if (padded < g.kernel[axis] || 2 * g.padding[axis] > g.kernel[axis]) {
    throw std::invalid_argument(
        "The pooling window of " + std::to_string(g.kernel[axis]) + " pixels with padding " +
        std::to_string(g.padding[axis]) + " does not suit an image of " + std::to_string(size) +
        "; expected a padding of at most half the window, and a window that fits.");
  }
  return (padded - g.kernel[axis]) / g.stride[axis] + 1;
}

Shape output_shape(Shape in, const PoolGeometry& g) {
  return Shape{in.channels, extent(in.height, g, 0), extent(in.width, g, 1), true};
}

Pool pool_of(Shape in, Shape out, const PoolGeometry& g) {
  return {in.channels, in.height,   in.width,    out.height,   out.width,   g.kernel[0],
          g.kernel[1], g.stride[0], g.stride[1], g.padding[0], g.padding[1]};
}

bool is_two_by_two(const Pool& p) {
  return p.kernel_y == 2 && p.kernel_x == 2 && p.stride_y == 2 && p.stride_x == 2 && p.pad_y == 0 &&
         p.pad_x == 0;
}

// Calls body(output, window) for each output of a plane; the window lies inside the image.
struct Window {
  Index top, bottom, left, right;
};
template <typename Body>
void for_each_window(const Pool& p, const Body& body) {
  Index output = 0;
  for (Index y = 0; y < p.out_height; ++y) {
    const Index top = y * p.stride_y - p.pad_y;
    for (Index x = 0; x < p.out_width; ++x) {
      const Index left = x * p.stride_x - p.pad_x;
      body(output++, Window{std::max<Index>(top, 0), std::min(top + p.kernel_y, p.height),
                            std::max<Index>(left, 0), std::min(left + p.kernel_x, p.width)});
    }
  }
}

}  // namespace

MaxPoolLayer::MaxPoolLayer(Shape in, const PoolGeometry& geometry)
    : Layer(in, output_shape(in, geometry)),
      pool_(pool_of(in, out, geometry)),
      two_by_two_(is_two_by_two(pool_)) {}

void MaxPoolLayer::allocate(const Setup& setup) {
  Layer::allocate(setup);
  stride_ = out.size() + kSlack;
  const auto notes = static_cast<std::size_t>(setup.max_batch * stride_);
  two_by_two_ ? quarter_.resize(notes) : place_.resize(notes);
}

void MaxPoolLayer::pool_image(const float* x, float* y, std::int32_t* chosen) const {
  for (Index plane = 0; plane < pool_.planes; ++plane) {
    for_each_window(pool_, [&](Index output, const Window& w) {
      Index best = w.top * pool_.width + w.left;
      for (Index row = w.top; row < w.bottom; ++row) {
        for (Index at = row * pool_.width + w.left; at < row * pool_.width + w.right; ++at) {
          if (x[at] > x[best]) best = at;
        }
      }
      y[output] = relu_ && x[best] < 0.0f ? 0.0f : x[best];
      chosen[output] = static_cast<std::int32_t>(best);
    });
    x += pool_.height * pool_.width;
    y += pool_.out_height * pool_.out_width;
    chosen += pool_.out_height * pool_.out_width;
  }
}

void MaxPoolLayer::spread_image(const float* y, const float* dy, const std::int32_t* chosen,
                                float* dx) const {
  const Index outputs = pool_.out_height * pool_.out_width;
  std::memset(dx, 0, static_cast<std::size_t>(in.size()) * sizeof(float));
  for (Index plane = 0; plane < pool_.planes; ++plane) {
    for (Index i = 0; i < outputs; ++i) {
      if (!relu_ || y[i] > 0.0f) dx[chosen[i]] += dy[i];
    }
    y += outputs;
    dy += outputs;
    chosen += outputs;
    dx += pool_.height * pool_.width;
  }
}

void MaxPoolLayer::forward(const Samples& s) {
  for (Index i = 0; i < s.count; ++i) {
    const float* x = s.x + i * s.ldx;
    float* y = s.y + i * s.ldy;
    const Index at = (s.first + i) * stride_;
    if (two_by_two_) {
      kernels->max_pool_2x2(pool_, x, y, quarter_.data() + at, relu_);
    } else {
      pool_image(x, y, place_.data() + at);
    }
  }
}

void MaxPoolLayer::backward(const Samples& s) {
  if (!s.dx) return;
  for (Index i = 0; i < s.count; ++i) {
    const float* y = relu_ ? s.y + i * s.ldy : nullptr;
    const float* dy = s.dy + i * s.lddy;
    float* dx = s.dx + i * s.lddx;
    const Index at = (s.first + i) * stride_;
    if (two_by_two_) {
      kernels->max_pool_2x2_grad(pool_, y, dy, quarter_.data() + at, dx);
    } else {
      spread_image(relu_ ? y : dy, dy, place_.data() + at, dx);
    }
  }
}

AveragePoolLayer::AveragePoolLayer(Shape in, const PoolGeometry& geometry)
    : Layer(in, output_shape(in, geometry)), pool_(pool_of(in, out, geometry)) {}

void AveragePoolLayer::forward(const Samples& s) {
  const float share = 1.0f / static_cast<float>(pool_.kernel_y * pool_.kernel_x);
  for (Index i = 0; i < s.count * pool_.planes; ++i) {
    const Index image = i / pool_.planes, plane = i % pool_.planes;
    const float* x = s.x + image * s.ldx + plane * pool_.height * pool_.width;
    float* y = s.y + image * s.ldy + plane * pool_.out_height * pool_.out_width;
    for_each_window(pool_, [&](Index output, const Window& w) {
      float total = 0.0f;
      for (Index row = w.top; row < w.bottom; ++row) {
        for (Index column = w.left; column < w.right; ++column)
          total += x[row * pool_.width + column];
      }
      y[output] = total * share;
    });
  }
}

void AveragePoolLayer::backward(const Samples& s) {
  if (!s.dx) return;
  const float share = 1.0f / static_cast<float>(pool_.kernel_y * pool_.kernel_x);
  const auto plane_bytes = static_cast<std::size_t>(pool_.height * pool_.width) * sizeof(float);
  for (Index i = 0; i < s.count * pool_.planes; ++i) {
    const Index image = i / pool_.planes, plane = i % pool_.planes;
    const float* dy = s.dy + image * s.lddy + plane * pool_.out_height * pool_.out_width;
    float* dx = s.dx + image * s.lddx + plane * pool_.height * pool_.width;
    std::memset(dx, 0, plane_bytes);
    for_each_window(pool_, [&](Index output, const Window& w) {
      const float d = dy[output] * share;
      for (Index row = w.top; row < w.bottom; ++row) {
        for (Index column = w.left; column < w.right; ++column) dx[row * pool_.width + column] += d;
      }
    });
  }
}

}  // namespace mh
