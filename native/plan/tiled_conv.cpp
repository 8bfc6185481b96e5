#include "plan/tiled_conv.h"

#include <algorithm>

namespace mh {
namespace {

constexpr Index kLeastTiles = 32;  // with fewer the weights' way from memory shows

Index tiles(Index pixels) { return (pixels + 3) / 4; }
Index tiles(Shape out) { return tiles(out.height) * tiles(out.width); }

Winograd tiled(Shape from, Shape to, Index above, Index left) {
  return {from.channels, to.channels, from.height, from.width,       above,
          left,          to.height,   to.width,    tiles(to.height), tiles(to.width)};
}

Index tiles_of(const Winograd& s) { return s.tiles_down * s.tiles_across; }

Index weight_floats(const Winograd& s) {
  return 36 * winograd_weight_slab(s.in_channels, s.out_channels);
}

Index scratch_floats(const Winograd& s, Index images) {
  const Index rows = images * tiles_of(s);
  return winograd_strip(s.tiles_across) +
         36 * (winograd_slab(rows, s.in_channels) + winograd_slab(rows, s.out_channels));
}

Images some(Index count, const float* data, Index stride) {
  return {count, const_cast<float*>(data), stride};
}

// Calls body(first, count) for `count` images, few enough at a time.
template <typename Body>
void for_parts(Index count, Index at_once, const Body& body) {
  for (Index i = 0; i < count; i += at_once) body(i, std::min(at_once, count - i));
}

}  // namespace

// Both sides are counted in multiply-adds of a full vector, all three passes, and were fitted to
// measured times: mapping a number of a tile costs 16, the maps of a weight 60 in all. The plain
// kernels fill their vectors from single rows, or from pixels that they gather first. A vector must
// not be wider than the channels.
bool TiledConv::pays(Shape in, Shape out, Pair padding, Index batch) {
  const Index narrow = std::min(in.channels, out.channels);
  if (narrow < kSlack / 2 || std::max(padding[0], padding[1]) > 2) return false;
  const auto products = [](Shape from, Shape to) {
    const Index maps = 16 * (from.channels + to.channels);
    return tiles(to) * (from.channels * round_up(to.channels, 16) + maps);
  };
  const Index weights = 60 * in.channels * out.channels;
  const Index tiled = 36 * (batch * (2 * products(in, out) + products(out, in)) + weights);
  const Index rows = out.height * round_up(out.width, 8) * out.channels;
  const Index gathered = round_up(out.height * out.width, 8) * (out.channels + 30);
  return tiled < 27 * batch * in.channels * std::min(rows, gathered);
}

Index TiledConv::least_group(Shape out) {
  return (kLeastTiles + tiles(out) - 1) / tiles(out);
}

TiledConv::TiledConv(Shape in, Shape out, Pair padding, bool trained, const Setup& setup)
    : kernels_(setup.kernels),
      forward_(tiled(in, out, padding[0], padding[1])),
      backward_(tiled(out, in, 2 - padding[0], 2 - padding[1])),
      at_once_(std::min(setup.group, least_group(out))) {
  Index weights = weight_floats(forward_), scratch = scratch_floats(forward_, at_once_);
  if (setup.wants_dx) {
    weights = std::max(weights, weight_floats(backward_));
    scratch = std::max(scratch, scratch_floats(backward_, at_once_));
  }
  weights_ = Buffer(weights);
  scratch_ = Buffer(scratch);
  if (trained) sums_ = Buffer(36 * winograd_slab(out.channels, in.channels));
}

void TiledConv::forward(const Samples& s, const float* weight, const float* bias, bool relu) {
  if (s.first == 0) {
    kernels_->winograd_weights(forward_, weight, 9 * forward_.in_channels, 9, false,
                               weights_.data());
  }
  for_parts(s.count, at_once_, [&](Index i, Index n) {
    kernels_->winograd_forward(forward_, some(n, s.x + i * s.ldx, s.ldx), weights_.data(), bias,
                               relu, scratch_.data(), some(n, s.y + i * s.ldy, s.ldy));
  });
}

void TiledConv::weight_grad(const Samples& s) {
  for_parts(s.count, at_once_, [&](Index i, Index n) {
    kernels_->winograd_weight_grad(forward_, some(n, s.x + i * s.ldx, s.ldx),
                                   some(n, s.dy + i * s.lddy, s.lddy), s.first + i > 0,
                                   scratch_.data(), sums_.data());
  });
}

void TiledConv::write_grad(float* grad) const {
  kernels_->winograd_gradient(forward_, sums_.data(), grad);
}

// The input gradient is a convolution of dy with the taps turned around.
void TiledConv::input_grad(const Samples& s, const float* weight) {
  if (s.first == 0) {
    kernels_->winograd_weights(backward_, weight, 9, 9 * backward_.out_channels, true,
                               weights_.data());
  }
  for_parts(s.count, at_once_, [&](Index i, Index n) {
    kernels_->winograd_forward(backward_, some(n, s.dy + i * s.lddy, s.lddy), weights_.data(),
                               nullptr, false, scratch_.data(), some(n, s.dx + i * s.lddx, s.lddx));
  });
}

}  // namespace mh
