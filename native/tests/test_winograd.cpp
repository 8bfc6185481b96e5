// Convolutions by tiles against plain loops, in memory of exactly the size that they ask for.
#include "check.h"

namespace mh::test {
namespace {

struct Case {
  Index in, out, height, width, above, left;
};

Winograd shape_of(const Case& c) {
  const Index down = c.height + 2 * c.above - 2, across = c.width + 2 * c.left - 2;
  return {c.in,   c.out,  c.height, c.width,        c.above,
          c.left, down,   across,   (down + 3) / 4, (across + 3) / 4};
}

// Calls body(input, output, weight) for every product of one image.
template <typename Body>
void for_each_product(const Winograd& s, const Body& body) {
  for (Index i = 0; i < s.out_channels * s.out_height * s.out_width * s.in_channels * 9; ++i) {
    const Index tap = i % 9, c = i / 9 % s.in_channels, output = i / 9 / s.in_channels;
    const Index pixel = output % (s.out_height * s.out_width);
    const Index y = pixel / s.out_width + tap / 3 - s.above;
    const Index x = pixel % s.out_width + tap % 3 - s.left;
    if (y < 0 || y >= s.height || x < 0 || x >= s.width) continue;
    const Index o = output / (s.out_height * s.out_width);
    body((c * s.height + y) * s.width + x, output, (o * s.in_channels + c) * 9 + tap);
  }
}

struct Expected {
  Array y, dx, grad;
};

Expected plainly(const Winograd& s, const Images& x, const Array& w, const Images& dy) {
  Expected e{Array(x.count * dy.stride), Array(x.count * x.stride), Array(w.size())};
  for (Index image = 0; image < x.count; ++image) {
    for_each_product(s, [&](Index input, Index output, Index weight) {
      const Index from = image * x.stride + input, to = image * dy.stride + output;
      e.y[to] += x.data[from] * w[weight];
      e.dx[from] += dy.data[to] * w[weight];
      e.grad[weight] += dy.data[to] * x.data[from];
    });
  }
  return e;
}

Array scratch_for(const Winograd& s, Index count) {
  const Index rows = count * s.tiles_down * s.tiles_across;
  return Array(winograd_strip(s.tiles_across) +
               36 * (winograd_slab(rows, s.in_channels) + winograd_slab(rows, s.out_channels)));
}

// Without the slack behind each image.
bool same_images(const Images& seen, const Array& expected, Index size) {
  for (Index image = 0; image < seen.count; ++image) {
    const float* from = seen.data + image * seen.stride;
    const float* to = expected.data() + image * seen.stride;
    if (!close(Array(from, from + size), Array(to, to + size), 1e-4f)) return false;
  }
  return true;
}

void test_case(const KernelTable& table, const Case& c, Index count) {
  const Winograd s = shape_of(c);
  const Index in_size = c.in * c.height * c.width, out_size = c.out * s.out_height * s.out_width;
  const Index ldx = in_size + kSlack, ldy = out_size + kSlack;
  Array x = random_array(count * ldx, 1), dy = random_array(count * ldy, 2);
  const Array w = random_array(c.out * c.in * 9, 3, 0.2f), bias = random_array(c.out, 4);
  const Images images{count, x.data(), ldx}, errors{count, dy.data(), ldy};
  Expected e = plainly(s, images, w, errors);
  Array y(count * ldy), dx(count * ldx), grad(w.size());
  const Images outputs{count, y.data(), ldy}, input_grads{count, dx.data(), ldx};

  Array mapped(36 * winograd_weight_slab(c.in, c.out)), scratch = scratch_for(s, count);
  table.winograd_weights(s, w.data(), 9 * c.in, 9, false, mapped.data());
  table.winograd_forward(s, images, mapped.data(), nullptr, false, scratch.data(), outputs);
  check(same_images(outputs, e.y, out_size), "outputs by tiles");
  table.winograd_forward(s, images, mapped.data(), bias.data(), true, scratch.data(), outputs);
  const Index plane = s.out_height * s.out_width;
  for (Index i = 0; i < count * out_size; ++i) {
    float& value = e.y[i / out_size * ldy + i % out_size];
    value = std::fmax(0.0f, value + bias[i % out_size / plane]);
  }
  check(same_images(outputs, e.y, out_size), "outputs by tiles, with bias and ReLU");

  const Winograd back{c.out,        c.in,     s.out_height, s.out_width,        2 - c.above,
                      2 - c.left,   c.height, c.width,      (c.height + 3) / 4, (c.width + 3) / 4};
  Array turned(36 * winograd_weight_slab(c.out, c.in)), back_scratch = scratch_for(back, count);
  table.winograd_weights(back, w.data(), 9, 9 * c.in, true, turned.data());
  table.winograd_forward(back, errors, turned.data(), nullptr, false, back_scratch.data(),
                         input_grads);
  check(same_images(input_grads, e.dx, in_size), "input gradient by tiles");

  Array sums(36 * winograd_slab(c.out, c.in), 7.0f);
  for (Index image = 0; image < count; ++image) {
    table.winograd_weight_grad(s, {1, x.data() + image * ldx, ldx},
                               {1, dy.data() + image * ldy, ldy}, image > 0, scratch.data(),
                               sums.data());
  }
  table.winograd_gradient(s, sums.data(), grad.data());
  check(close(grad, e.grad, 1e-4f), "weight gradient by tiles");
}

}  // namespace

void test_winograd(const KernelTable& table) {
  for (const Index count : {1, 3}) {
    test_case(table, {16, 16, 4, 4, 1, 1}, count);
    test_case(table, {17, 31, 3, 3, 0, 0}, count);
    test_case(table, {33, 16, 1, 2, 1, 2}, count);
    test_case(table, {19, 37, 7, 18, 1, 1}, count);
    test_case(table, {24, 20, 9, 5, 2, 0}, count);
  }
}

}  // namespace mh::test
