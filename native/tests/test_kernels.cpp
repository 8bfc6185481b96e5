// Kernels against plain loops, over sizes around every vector and tile boundary.
#include "check.h"

namespace mh::test {
namespace {

const std::vector<Index> kSizes = {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 50, 65};

void test_updates(const KernelTable& table) {
  for (const char* name : {"sgd", "adagrad", "adam", "adamw", "outer", "accumulate"}) {
    const Rule rule(name, RuleSettings{});
    for (const Index n : kSizes) {
      Array w = random_array(n, 1), s0(w.size(), 0.1f), s1(w.size(), 0.1f);
      const Array g = random_array(n, 2), before = w;
      table.update(at_step(rule, 0.1, 1, 1.0), n, w.data(), g.data(), s0.data(), s1.data());
      check(!close(w, before, 1e-6f) && close(w, before, 4.0f), name);
      table.average(n, w.data(), g.data(), 1.0f);
      check(close(w, g, 1e-5f), "average");
      double squares = 0.0;
      for (const float x : g) squares += static_cast<double>(x) * x;
      check(std::fabs(table.squared_norm(n, g.data()) - squares) < 1e-4 * (1 + squares), "norm");
    }
  }
}

void test_elementwise(const KernelTable& table) {
  for (const Index n : kSizes) {
    const Array x = random_array(n, 3, 4.0f);
    Array y(x.size()), expected(x.size());
    table.tanh(n, x.data(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) expected[i] = std::tanh(x[i]);
    check(close(y, expected, 1e-6f), "tanh");
    table.sigmoid(n, x.data(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) expected[i] = 1.0f / (1.0f + std::exp(-x[i]));
    check(close(y, expected, 1e-6f), "sigmoid");
    table.relu(n, x.data(), y.data());
    table.relu_grad(n, y.data(), x.data(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) expected[i] = x[i] > 0.0f ? x[i] : 0.0f;
    check(close(y, expected, 0.0f), "relu");
    float top;
    const double total = table.exponentials(n, x.data(), y.data(), &top);
    check(total >= 1.0 && total <= static_cast<double>(n) + 1e-3, "exponentials");
  }
}

struct LinearCase {
  Index batch, in, out;
};

// As a ReLU leaves them: a row and a column in the middle are nothing but zeros.
Array rectified(Index rows, Index columns, std::uint64_t seed) {
  Array x = random_array(rows * columns, seed);
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c) {
      float& value = x[static_cast<std::size_t>(r * columns + c)];
      if (value < 0.0f || r == rows / 2 || c == columns / 2) value = 0.0f;
    }
  }
  return x;
}

void test_linear_forward(const KernelTable& table, const LinearCase& c, const Array& x) {
  const Array w = random_array(c.out * c.in, 5);
  const Array bias = random_array(c.out, 6);
  Array y(static_cast<std::size_t>(c.batch * c.out)), expected(y.size());
  for (Index b = 0; b < c.batch; ++b) {
    for (Index o = 0; o < c.out; ++o) {
      float sum = bias[o];
      for (Index k = 0; k < c.in; ++k) sum += x[b * c.in + k] * w[o * c.in + k];
      expected[b * c.out + o] = sum > 0.0f ? sum : 0.0f;
    }
  }
  Array scratch(static_cast<std::size_t>(linear_forward_scratch(c.batch, c.in)));
  table.linear_forward({c.batch, c.in, c.out, x.data(), c.in, w.data(), bias.data(), y.data(),
                        c.out, true, scratch.data()});
  check(close(y, expected, 1e-4f), "linear_forward");
}

void test_linear_backward(const KernelTable& table, const LinearCase& c, const Array& dy) {
  const Index panels = panel_floats(c.batch, c.in);
  const Array x = random_array(c.batch * c.in, 7);
  Array w = random_array(c.out * c.in, 9), grad(w.size());
  Array x_panels(panels), dx_panels(panels), scratch(linear_backward_scratch(c.batch)), dx(x.size());
  table.pack_panels(c.batch, c.in, x.data(), c.in, x_panels.data());
  LinearBackward p{
      c.batch,          c.in,     c.out,   dy.data(), c.out, scratch.data(), x_panels.data(),
      dx_panels.data(), w.data(), nullptr, nullptr,   true,  grad.data(),  nullptr};
  table.linear_backward(p);
  table.unpack_panels(c.batch, c.in, dx_panels.data(), dx.data(), c.in);
  Array dx_expected(x.size()), grad_expected(w.size()), w_expected = w;
  for (Index b = 0; b < c.batch; ++b) {
    for (Index o = 0; o < c.out; ++o) {
      for (Index k = 0; k < c.in; ++k) {
        dx_expected[b * c.in + k] += dy[b * c.out + o] * w[o * c.in + k];
        grad_expected[o * c.in + k] += dy[b * c.out + o] * x[b * c.in + k];
      }
    }
  }
  check(close(dx, dx_expected, 1e-4f), "input gradient");
  check(close(grad, grad_expected, 1e-4f), "weight gradient");
  const RuleStep step = at_step(Rule("sgd", RuleSettings{}), 0.5, 1, 1.0);
  p.grad = nullptr;
  p.step = &step;
  table.linear_backward(p);
  for (std::size_t i = 0; i < w.size(); ++i) w_expected[i] -= 0.5f * grad_expected[i];
  check(close(w, w_expected, 1e-4f), "fused update");
}

}  // namespace

void test_kernels(const KernelTable& table) {
  test_updates(table);
  test_elementwise(table);
  for (const Index batch : {1, 2, 3, 7, 13, 16, 17, 40, 100}) {
    for (const Index in : {1, 7, 16, 33, 100}) {
      for (const Index out : {1, 3, 10, 51, 64}) {
        const LinearCase c{batch, in, out};
        test_linear_forward(table, c, random_array(batch * in, 4));
        test_linear_forward(table, c, rectified(batch, in, 4));
        test_linear_backward(table, c, random_array(batch * out, 8));
        test_linear_backward(table, c, rectified(batch, out, 8));
      }
    }
  }
  test_linear_forward(table, {13, 1100, 270}, random_array(13 * 1100, 4));
  test_linear_forward(table, {34, 1100, 270}, rectified(34, 1100, 4));
}

}  // namespace mh::test
