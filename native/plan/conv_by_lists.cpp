#include "plan/conv_by_lists.h"

#include <algorithm>

namespace mh {
namespace {

// Turned images leave some of a first-level cache to the weights and the lists.
constexpr Index kCacheFloats = 28 * 1024 / sizeof(float);

Images part_of(const Images& all, Index first, Index count) {
  return {count, all.data + first * all.stride, all.stride};
}

ListedConv listed_conv(Shape in, Shape out, const ConvGeometry& g, Index lanes) {
  const Index width = in.width + 2 * g.padding[1], height = in.height + 2 * g.padding[0];
  return {in.channels,
          in.height,
          in.width,
          out.channels,
          out.height,
          out.width,
          g.kernel[0],
          g.kernel[1],
          g.padding[0],
          g.padding[1],
          width,
          height * width * lanes,
          g.stride[0] * width * lanes,
          g.stride[1] * lanes,
          g.dilation[0] * width * lanes,
          out.channels * g.kernel[0] * g.kernel[1] * lanes};
}

}  // namespace

bool ConvByLists::suits(Shape in, const ConvGeometry& g, Index lanes) {
  return (g.kernel[1] == 3 || g.kernel[1] == 5) && g.dilation[1] == 1 && 2 * in.channels > lanes;
}

ConvByLists::ConvByLists(Shape in, Shape out, const ConvGeometry& geometry, const Setup& setup)
    : kernels_(setup.kernels),
      conv_(listed_conv(in, out, geometry, kernels_->lanes)),
      at_once_(std::clamp<Index>(kCacheFloats / conv_.turned_image, 1, setup.group)),
      ends_(static_cast<std::size_t>(setup.group * out.channels)) {
  const Index lanes = kernels_->lanes, blocks = round_up(in.channels, lanes) / lanes;
  const Index turned = at_once_ * conv_.turned_image + lanes * lanes;
  values_ = Buffer(setup.group * out.size());
  windows_.resize(static_cast<std::size_t>(setup.group * out.size() + kSlack));
  turned_x_ = Buffer(turned);
  turned_grad_ = Buffer(blocks * conv_.turned_weights);
  if (!setup.wants_dx) return;
  turned_dx_ = Buffer(turned);
  turned_weights_ = Buffer(blocks * conv_.turned_weights);
}

template <typename Body>
void ConvByLists::for_each_part(const Body& body) {
  const Index size = conv_.out_channels * conv_.out_height * conv_.out_width;
  for (Index first = 0; first < listed_; first += at_once_) {
    const PixelLists lists{values_.data() + first * size, windows_.data() + first * size,
                           ends_.data() + first / at_once_ * conv_.out_channels};
    body(lists, first, std::min(at_once_, listed_ - first));
  }
}

double ConvByLists::list(const Images& dy) {
  listed_ = dy.count;
  Index left = 0;
  for_each_part([&](const PixelLists& lists, Index first, Index count) {
    kernels_->list_pixels(conv_, part_of(dy, first, count), lists);
    left += lists.ends[conv_.out_channels - 1];
  });
  const Index all = dy.count * conv_.out_channels * conv_.out_height * conv_.out_width;
  return static_cast<double>(left * round_up(conv_.in_channels, kernels_->lanes)) /
         static_cast<double>(all * conv_.in_channels);
}

void ConvByLists::add_weight_grad(const Images& x) {
  for_each_part([&](const PixelLists& lists, Index first, Index count) {
    kernels_->listed_weight_grad(conv_, lists, part_of(x, first, count), turned_x_.data(),
                                 turned_grad_.data());
  });
}

template <typename Body>
void ConvByLists::for_each_weight(const Body& body) const {
  const Index lanes = kernels_->lanes, area = conv_.kernel_height * conv_.kernel_width;
  for (Index first = 0; first < conv_.in_channels; first += lanes) {
    const Index channels = std::min(lanes, conv_.in_channels - first);
    for (Index o = 0; o < conv_.out_channels; ++o) {
      const Index at = (o * conv_.in_channels + first) * area;
      const Index turned = first / lanes * conv_.turned_weights + o * area * lanes;
      for (Index c = 0; c < channels; ++c) {
        for (Index t = 0; t < area; ++t) body(at + c * area + t, turned + t * lanes + c);
      }
    }
  }
}

void ConvByLists::input_grad(const float* weight, const Images& dx, bool new_weight) {
  float* turned = turned_weights_.data();
  if (new_weight) for_each_weight([&](Index from, Index to) { turned[to] = weight[from]; });
  for_each_part([&](const PixelLists& lists, Index first, Index count) {
    kernels_->listed_input_grad(conv_, lists, turned, turned_dx_.data(), part_of(dx, first, count));
  });
}

void ConvByLists::write_grad(float* grad) {
  float* turned = turned_grad_.data();
  for_each_weight([&](Index to, Index from) {
    grad[to] = turned[from];
    turned[from] = 0.0f;
  });
}

}  // namespace mh
