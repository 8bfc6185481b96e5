#include "plan/tiled_conv.h"

#include <algorithm>

namespace mh {
namespace {

constexpr Index kLeastTiles = 32;

Index tiles(Index pixels) { return (pixels + 3) / 4; }

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

// Counted in multiply-adds of the products, as measured: mapping a number costs 16, a weight 12 in
// each of three passes, and the plain kernels take half as long again for theirs. A vector must not
// be wider than the channels.
bool TiledConv::pays(Shape in, Shape out, Pair padding, Index batch) {
  const Index narrow = std::min(in.channels, out.channels);
  if (narrow < kSlack / 2 || std::max(padding[0], padding[1]) > 2) return false;
  const Index weights = in.channels * out.channels;
  const Index rows = batch * tiles(out.height) * tiles(out.width);
  const Index mapped = 36 * (rows * (weights + 16 * (in.channels + out.channels)) + 12 * weights);
  return 2 * mapped < 3 * 9 * batch * out.height * out.width * weights;
}

Index TiledConv::least_group(Shape out) {
  const Index each = tiles(out.height) * tiles(out.width);
  return (kLeastTiles + each - 1) / each;
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
