// A two-dimensional convolution, with the ReLU behind it if there is one.
//
// How an image reaches the kernels (conv.h) is decided once, from the geometry:
//
//   direct    the image itself, or a copy with a border of zeros
//   matrix    its windows laid out one tap per row, when the kernels can't read it directly
//
// Where tiles pay, they do it all instead (tiled_conv.h), and where most of dy is zero, lists do the
// backward pass or a part of it (conv_by_lists.h).
#pragma once

#include <memory>
#include <vector>

#include "plan/conv_by_lists.h"
#include "plan/conv_geometry.h"
#include "plan/layer.h"
#include "plan/tiled_conv.h"

namespace mh {

class ConvLayer : public Layer {
 public:
  // Throws std::invalid_argument when the kernel does not fit into the padded image.
  ConvLayer(Shape in, Index outputs, const ConvGeometry& geometry, Parameter weight,
            Parameter bias);

  void allocate(const Setup& setup) override;
  void begin_batch() override;
  void forward(const Samples& s) override;
  void backward(const Samples& s) override;
  void end_batch() override;
  bool keeps_input() const override { return parameters[0].trained; }
  bool keeps_output() const override { return relu_; }
  Index scratch_floats() const override;
  Index least_group(Index max_batch) const override;
  bool absorb_relu() override;
  bool release_relu() override;

 private:
  Index area() const { return geometry_.kernel[0] * geometry_.kernel[1]; }
  bool padded() const { return geometry_.padding[0] || geometry_.padding[1]; }
  bool tiles_pay(Index max_batch) const;
  bool reads_directly(Index lanes) const;
  void lay_out_directly(Index lanes);
  void lay_out_as_matrix(Index lanes);
  void allocate_plain(const Setup& setup);
  // The image as the kernels read it, in the slot's buffers unless it can stay where it is.
  const float* stage(const float* x, Index slot);
  Images stage_all(const Samples& s);
  Images spread_all(const Samples& s);
  void choose_lists(const Samples& s);
  void backward_plain(const Samples& s, bool weights, bool inputs);
  void input_grad(const float* dy, float* dx);

  const ConvGeometry geometry_;
  bool relu_ = false;
  std::unique_ptr<TiledConv> tiled_;
  std::unique_ptr<ConvByLists> by_lists_;
  bool list_weights_ = false, list_inputs_ = false;  // in this batch
  bool matrix_ = false;
  bool spread_ = false;  // dy has rows that don't fill whole vectors
  std::vector<PixelVector> pixels_;
  std::vector<Index> taps_;
  ConvShape shape_{};
  Padding padding_{};
  Windows windows_{};
  Index padded_stride_ = 0, matrix_stride_ = 0, vectors_stride_ = 0;
  Buffer padded_, matrix_slots_, vectors_, padded_grad_, matrix_grad_, tap_weights_;
};

}  // namespace mh
