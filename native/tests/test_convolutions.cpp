// The backward pass of a convolution against plain loops, from gradients with all shares of zeros.
#include <limits>

#include "check.h"
#include "plan/layer_conv.h"

namespace mh::test {
namespace {

struct Case {
  const char* name;
  Shape in;
  Index outputs;
  ConvGeometry geometry;
};

const std::vector<Case> kCases = {
    {"three by three", {16, 8, 8, true}, 24, {{3, 3}, {1, 1}, {1, 1}, {1, 1}}},
    {"odd sizes", {11, 7, 9, true}, 5, {{3, 3}, {1, 1}, {1, 2}, {1, 1}}},
    {"one pixel", {3, 3, 3, true}, 2, {{3, 3}, {1, 1}, {0, 0}, {1, 1}}},
    {"five by five", {10, 12, 12, true}, 20, {{5, 5}, {1, 1}, {0, 0}, {1, 1}}},
    {"strided", {9, 13, 16, true}, 6, {{5, 3}, {3, 2}, {2, 1}, {1, 1}}},
    {"dilated rows", {17, 11, 6, true}, 4, {{3, 3}, {1, 1}, {2, 1}, {2, 1}}},
    {"dilated columns", {6, 8, 11, true}, 4, {{3, 3}, {1, 1}, {1, 1}, {1, 2}}},
    {"large", {20, 20, 35, true}, 2, {{3, 5}, {1, 1}, {1, 2}, {1, 1}}},
    {"point", {8, 4, 5, true}, 7, {{1, 1}, {1, 1}, {0, 0}, {1, 1}}},
};

struct Gradients {
  Array weight, bias, dx;
};

// Calls body(input, weight) for each pair that belongs to one output pixel.
template <typename Body>
void for_each_product(const Case& c, Index o, Index y, Index x, const Body& body) {
  const ConvGeometry& g = c.geometry;
  for (Index channel = 0; channel < c.in.channels; ++channel) {
    for (Index ky = 0; ky < g.kernel[0]; ++ky) {
      for (Index kx = 0; kx < g.kernel[1]; ++kx) {
        const Index row = y * g.stride[0] + ky * g.dilation[0] - g.padding[0];
        const Index column = x * g.stride[1] + kx * g.dilation[1] - g.padding[1];
        if (row < 0 || row >= c.in.height || column < 0 || column >= c.in.width) continue;
        body((channel * c.in.height + row) * c.in.width + column,
             ((o * c.in.channels + channel) * g.kernel[0] + ky) * g.kernel[1] + kx);
      }
    }
  }
}

Gradients expected(const Case& c, Shape out, Index count, const Array& x, const Array& dy,
                   const float* weight, Index weights) {
  Gradients e{Array(static_cast<std::size_t>(weights)),
              Array(static_cast<std::size_t>(out.channels)), Array(x.size())};
  for (Index i = 0; i < count; ++i) {
    for (Index at = 0; at < out.size(); ++at) {
      const Index o = at / (out.height * out.width), pixel = at % (out.height * out.width);
      const float d = dy[i * out.size() + at];
      if (d == 0.0f) continue;
      e.bias[o] += d;
      for_each_product(c, o, pixel / out.width, pixel % out.width, [&](Index in, Index w) {
        e.weight[w] += d * x[i * c.in.size() + in];
        e.dx[i * c.in.size() + in] += d * weight[w];
      });
    }
  }
  return e;
}

// Rows of `size` with the slack that layers may touch.
Array with_slack(const Array& rows, Index size) {
  const Index count = static_cast<Index>(rows.size()) / size;
  Array out(static_cast<std::size_t>(count * (size + kSlack)));
  for (Index i = 0; i < static_cast<Index>(rows.size()); ++i) out[i / size * kSlack + i] = rows[i];
  return out;
}

Array with_zeros(Array x, double share, std::uint64_t seed) {
  const Array chance = random_array(static_cast<Index>(x.size()), seed);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (chance[i] < 2.0 * share - 1.0) x[i] = 0.0f;
  }
  return x;
}

struct Trained {
  Weights weights;
  ConvLayer layer;

  Trained(const KernelTable& table, const Case& c, Index group)
      : layer(c.in, c.outputs, c.geometry,
              weights.parameter(c.outputs * c.in.channels * c.geometry.kernel[0] *
                                    c.geometry.kernel[1],
                                0, 31, 0.3f),
              weights.parameter(c.outputs, 0, 32, 0.1f)) {
    layer.allocate({&table, 9, group, true, false});
  }

  // The whole batch in groups, as a network gives it.
  Array backward(const Array& x, const Array& dy, Index count, Index group) {
    const Index in = layer.in.size() + kSlack, out = layer.out.size() + kSlack;
    Array xs = with_slack(x, layer.in.size()), dys = with_slack(dy, layer.out.size());
    Array dxs(xs.size(), 7.0f), dx(x.size());
    layer.begin_batch();
    for (Index first = 0; first < count; first += group) {
      Samples s;
      s.first = first;
      s.count = count - first < group ? count - first : group;
      s.x = xs.data() + first * in;
      s.dy = dys.data() + first * out;
      s.dx = dxs.data() + first * in;
      s.ldx = s.lddx = in;
      s.lddy = out;
      layer.backward(s);
    }
    layer.end_batch();
    for (std::size_t i = 0; i < dx.size(); ++i) {
      dx[i] = dxs[i + i / static_cast<std::size_t>(layer.in.size()) * kSlack];
    }
    return dx;
  }

  Array grad(std::size_t i) const {
    const Parameter& p = layer.parameters[i];
    return Array(p.grad.data(), p.grad.data() + p.size);
  }
};

void compare(const KernelTable& table, const Case& c, Index count, Index group, double zeros) {
  Trained trained(table, c, group);
  const Shape out = trained.layer.out;
  for (std::uint64_t batch = 0; batch < 3; ++batch) {  // each begins from nothing again
    const Array x = random_array(count * c.in.size(), 33 + batch);
    const double share = batch == 1 ? 1.0 - zeros : zeros;  // from lists to none and back
    const Array dy = with_zeros(random_array(count * out.size(), 36 + batch), share, 39 + batch);
    const Array dx = trained.backward(x, dy, count, group);
    const Parameter& weight = trained.layer.parameters[0];
    const Gradients e = expected(c, out, count, x, dy, weight.weight, weight.size);
    check(close(trained.grad(0), e.weight, 2e-4f), c.name);
    check(close(trained.grad(1), e.bias, 2e-4f), c.name);
    check(close(dx, e.dx, 2e-4f), c.name);
  }
}

// What is not finite in dy reaches every gradient; a weight that is not finite is passed over where
// dy is zero.
void keep_what_is_not_finite(const KernelTable& table) {
  const Case& c = kCases[3];
  Trained trained(table, c, 1);
  Array x = random_array(c.in.size(), 41), dy(static_cast<std::size_t>(trained.layer.out.size()));
  trained.layer.parameters[0].weight[0] = std::numeric_limits<float>::infinity();
  for (const float d : trained.backward(x, dy, 1, 1)) check(d == 0.0f, "zeros pass over infinity");
  dy[3 * 64 + 27] = std::numeric_limits<float>::quiet_NaN();
  const Array dx = trained.backward(x, dy, 1, 1);
  check(std::isnan(dx[5 * 12 + 5]) && std::isnan(trained.grad(0)[3 * 10 * 25]), "NaN spreads");
  check(std::isnan(trained.grad(1)[3]) && !std::isnan(trained.grad(1)[2]), "NaN in a bias");
}

}  // namespace

void test_convolutions(const KernelTable& table) {
  for (const Case& c : kCases) {
    for (const double zeros : {0.0, 0.5, 0.85, 1.0}) {
      compare(table, c, 1, 1, zeros);
      compare(table, c, 9, 4, zeros);
    }
  }
  keep_what_is_not_finite(table);
}

}  // namespace mh::test
