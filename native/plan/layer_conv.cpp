#include "plan/layer_conv.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace mh {
namespace {

Index extent(Index size, const ConvGeometry& g, int axis) {
  const Index reach = g.dilation[axis] * (g.kernel[axis] - 1) + 1;
  const Index padded = size + 2 * g.padding[axis];
  if (padded < reach) {
    throw std::invalid_argument("The convolution's kernel reaches over " + std::to_string(reach) +
                                " pixels; expected at most the padded image's " +
                                std::to_string(padded) + ".");
  }
  return (padded - reach) / g.stride[axis] + 1;
}

Shape output_shape(Shape in, Index outputs, const ConvGeometry& g) {
  return Shape{outputs, extent(in.height, g, 0), extent(in.width, g, 1), true};
}

}  // namespace

ConvLayer::ConvLayer(Shape in, Index outputs, const ConvGeometry& geometry, Parameter weight,
                     Parameter bias)
    : Layer(in, output_shape(in, outputs, geometry)), geometry_(geometry) {
  parameters.push_back(std::move(weight));
  if (bias.weight) parameters.push_back(std::move(bias));
}

bool ConvLayer::absorb_relu() { return relu_ ? false : (relu_ = true); }

bool ConvLayer::release_relu() { return std::exchange(relu_, false); }

bool ConvLayer::tiles_pay(Index max_batch) const {
  constexpr Pair one{1, 1}, three{3, 3};
  return geometry_.kernel == three && geometry_.stride == one && geometry_.dilation == one &&
         TiledConv::pays(in, out, geometry_.padding, max_batch);
}

// With fewer than 4 a plain weight gradient spends its time on summing up lanes.
Index ConvLayer::least_group(Index max_batch) const {
  return tiles_pay(max_batch) ? TiledConv::least_group(out) : 4;
}

bool ConvLayer::reads_directly(Index lanes) const {
  const Index direct = out.height * round_up(out.width, lanes);
  const Index packed = round_up(out.height * out.width, lanes);
  return geometry_.stride[1] == 1 && direct * 10 <= packed * 14;
}

void ConvLayer::lay_out_directly(Index lanes) {
  const Index width = padding_.padded_width, plane = padding_.padded_height * width;
  for (Index y = 0; y < out.height; ++y) {
    for (Index x = 0; x < out.width; x += lanes) {
      const Index rest = out.width - x;
      pixels_.push_back(
          {y * geometry_.stride[0] * width + x, y * out.width + x, rest < lanes ? rest : lanes});
    }
  }
  for (Index c = 0; c < in.channels; ++c) {
    for (Index y = 0; y < geometry_.kernel[0]; ++y) {
      for (Index x = 0; x < geometry_.kernel[1]; ++x) {
        taps_.push_back(c * plane + y * geometry_.dilation[0] * width + x * geometry_.dilation[1]);
      }
    }
  }
  shape_.staged_plane = plane;
}

void ConvLayer::lay_out_as_matrix(Index lanes) {
  const Index pixels = out.height * out.width, row = round_up(pixels, lanes);
  for (Index p = 0; p < pixels; p += lanes) {
    pixels_.push_back({p, p, pixels - p < lanes ? pixels - p : lanes});
  }
  for (Index k = 0; k < in.channels * area(); ++k) taps_.push_back(k * row);
  shape_.staged_plane = area() * row;
  windows_ = {in.channels,
              padding_.padded_height * padding_.padded_width,
              padding_.padded_width,
              geometry_.kernel[0],
              geometry_.kernel[1],
              geometry_.stride[0],
              geometry_.stride[1],
              geometry_.dilation[0],
              geometry_.dilation[1],
              out.height,
              out.width,
              row};
}

Index ConvLayer::scratch_floats() const {
  const Index padded_size =
      in.channels * (in.height + 2 * geometry_.padding[0]) * (in.width + 2 * geometry_.padding[1]);
  const bool direct = reads_directly(8);
  return padded_size + out.size() + (direct ? 0 : in.channels * area() * out.height * out.width);
}

void ConvLayer::allocate(const Setup& setup) {
  Layer::allocate(setup);
  if (tiles_pay(setup.max_batch)) {
    tiled_ = std::make_unique<TiledConv>(in, out, geometry_.padding, parameters[0].trained, setup);
  } else {
    allocate_plain(setup);
  }
  if (ConvByLists::suits(in, geometry_, kernels->lanes)) {
    by_lists_ = std::make_unique<ConvByLists>(in, out, geometry_, setup);
  }
  for (Parameter& p : parameters) p.grad = Buffer(p.size);
}

void ConvLayer::allocate_plain(const Setup& setup) {
  const Index lanes = kernels->lanes;
  padding_ = {in.channels,
              in.height,
              in.width,
              geometry_.padding[0],
              geometry_.padding[1],
              in.height + 2 * geometry_.padding[0],
              in.width + 2 * geometry_.padding[1]};
  matrix_ = !reads_directly(lanes);
  matrix_ ? lay_out_as_matrix(lanes) : lay_out_directly(lanes);
  shape_.in_channels = in.channels;
  shape_.out_channels = out.channels;
  shape_.area = area();
  shape_.depth = in.channels * area();
  shape_.vectors = static_cast<Index>(pixels_.size());
  shape_.pixels = pixels_.data();
  shape_.taps = taps_.data();
  shape_.out_plane = out.height * out.width;
  spread_ = shape_.vectors * lanes != shape_.out_plane;

  const Index padded_size = in.channels * padding_.padded_height * padding_.padded_width;
  padded_stride_ = padded_size + kSlack;
  matrix_stride_ = matrix_ ? shape_.depth * windows_.row + kSlack : 0;
  vectors_stride_ = out.channels * shape_.vectors * lanes;
  if (padded()) padded_ = Buffer(setup.group * padded_stride_);
  if (matrix_) matrix_slots_ = Buffer(setup.group * matrix_stride_);
  if (spread_) vectors_ = Buffer(setup.group * vectors_stride_);
  if (setup.wants_dx) {
    if (padded()) padded_grad_ = Buffer(padded_stride_);
    if (matrix_) matrix_grad_ = Buffer(matrix_stride_);
    tap_weights_ = Buffer(parameters[0].size);
  }
}

// The weights are read once for the whole batch while other processes may change them: the layer's
// two passes then see slightly different weights, which asynchronous training tolerates anyway.
void ConvLayer::begin_batch() {
  for (Parameter& p : parameters) {
    std::memset(p.grad.data(), 0, static_cast<std::size_t>(p.size) * sizeof(float));
  }
  float* to = tap_weights_.data();
  if (!to) return;
  for (Index t = 0; t < area(); ++t) {
    for (Index o = 0; o < out.channels; ++o) {
      const float* from = parameters[0].weight + o * shape_.depth + t;
      for (Index c = 0; c < in.channels; ++c) *to++ = from[c * area()];
    }
  }
}

const float* ConvLayer::stage(const float* x, Index slot) {
  if (padded()) {
    float* to = padded_.data() + slot * padded_stride_;
    kernels->pad(padding_, x, to);
    x = to;
  }
  if (!matrix_) return x;
  float* to = matrix_slots_.data() + slot * matrix_stride_;
  kernels->gather_windows(windows_, x, to);
  return to;
}

void ConvLayer::forward(const Samples& s) {
  const float* bias = parameters.size() > 1 ? parameters[1].weight : nullptr;
  if (tiled_) return tiled_->forward(s, parameters[0].weight, bias, relu_);
  for (Index i = 0; i < s.count; ++i) {
    const float* staged = stage(s.x + i * s.ldx, 0);
    kernels->conv_forward(shape_, staged, parameters[0].weight, bias, s.y + i * s.ldy, relu_);
  }
}

Images ConvLayer::stage_all(const Samples& s) {
  if (!padded() && !matrix_) return {s.count, const_cast<float*>(s.x), s.ldx};
  for (Index i = 0; i < s.count; ++i) stage(s.x + i * s.ldx, i);
  if (matrix_) return {s.count, matrix_slots_.data(), matrix_stride_};
  return {s.count, padded_.data(), padded_stride_};
}

Images ConvLayer::spread_all(const Samples& s) {
  if (!spread_) return {s.count, s.dy, s.lddy};
  for (Index i = 0; i < s.count; ++i) {
    kernels->spread_pixels(shape_, s.dy + i * s.lddy, vectors_.data() + i * vectors_stride_);
  }
  return {s.count, vectors_.data(), vectors_stride_};
}

void ConvLayer::input_grad(const float* dy, float* dx) {
  const auto cleared = [](float* p, Index floats) {
    std::memset(p, 0, static_cast<std::size_t>(floats) * sizeof(float));
    return p;
  };
  float* image =
      padded() ? cleared(padded_grad_.data(), padded_stride_) : cleared(dx, in.size() + kSlack);
  if (matrix_) {
    float* matrix = cleared(matrix_grad_.data(), matrix_stride_);
    kernels->conv_input_grad(shape_, dy, tap_weights_.data(), matrix);
    kernels->scatter_windows(windows_, matrix, image);
  } else {
    kernels->conv_input_grad(shape_, dy, tap_weights_.data(), image);
  }
  if (padded()) kernels->unpad(padding_, image, dx);
}

void ConvLayer::backward(const Samples& s) {
  if (relu_) {
    for (Index i = 0; i < s.count; ++i) {
      float* dy = s.dy + i * s.lddy;
      kernels->relu_grad(out.size(), s.y + i * s.ldy, dy, dy);
    }
  }
  if (parameters.size() > 1 && parameters[1].trained) {
    kernels->conv_bias_grad(out.channels, out.height * out.width, {s.count, s.dy, s.lddy},
                            parameters[1].grad.data());
  }
  choose_lists(s);
  const bool weights = parameters[0].trained, inputs = s.dx;
  if (weights && list_weights_) {
    by_lists_->add_weight_grad({s.count, const_cast<float*>(s.x), s.ldx});
  }
  if (inputs && list_inputs_) {
    by_lists_->input_grad(parameters[0].weight, {s.count, s.dx, s.lddx}, s.first == 0);
  }
  if (!tiled_) return backward_plain(s, weights && !list_weights_, inputs && !list_inputs_);
  if (weights && !list_weights_) tiled_->weight_grad(s);
  if (inputs && !list_inputs_) tiled_->input_grad(s, parameters[0].weight);
}

// The first samples decide for the batch. As measured: a listed multiply-add of a weight's gradient
// takes a little longer than a plain one, because an operand comes from memory, and one of an
// input's gradient three times as long, because its sum does too.
void ConvLayer::choose_lists(const Samples& s) {
  if (!by_lists_ || (s.first > 0 && !list_weights_ && !list_inputs_)) return;
  const double left = by_lists_->list({s.count, s.dy, s.lddy});
  if (s.first > 0) return;
  list_weights_ = left <= (tiled_ ? 0.22 : 0.7);
  list_inputs_ = !tiled_ && left <= 0.35;
}

void ConvLayer::end_batch() {
  if (!parameters[0].trained) return;
  if (list_weights_) {
    by_lists_->write_grad(parameters[0].grad.data());
  } else if (tiled_) {
    tiled_->write_grad(parameters[0].grad.data());
  }
}

void ConvLayer::backward_plain(const Samples& s, bool weights, bool inputs) {
  if (!weights && !inputs) return;
  const Images dy = spread_all(s);
  if (weights) kernels->conv_weight_grad(shape_, stage_all(s), dy, parameters[0].grad.data());
  for (Index i = 0; inputs && i < s.count; ++i) {
    input_grad(dy.data + i * dy.stride, s.dx + i * s.lddx);
  }
}

}  // namespace mh
