// Activations and their gradients, element by element.
#pragma once

#include "kernels/vec.h"

namespace mh::MH_ISA {

typedef std::int32_t IntVec __attribute__((vector_size(sizeof(Vec))));

// e^x to within a few units in the last place; 0 below about -87, a large finite number above 88.
MH_INLINE Vec exponential(Vec x) {
  const Vec rounder = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  x = larger(splat(-87.3f), lesser(splat(88.3f), x));
  const Vec shifted = fma(x, splat(1.44269504f), rounder);
  const Vec n = shifted - rounder;
  Vec r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  Vec p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r + splat(1.0f));
  const IntVec power = ((IntVec)shifted << 23) + (IntVec)splat(1.0f);  // the bits of 2^n
  return p * (Vec)power;
}

MH_INLINE Vec hyperbolic_tangent(Vec x) {
  // Near zero 1 - 2 / (e^2x + 1) would lose its digits: a polynomial of Cephes takes over.
  const Vec z = x * x;
  Vec p = splat(-5.70498872745e-3f);
  p = fma(p, z, splat(2.06390887954e-2f));
  p = fma(p, z, splat(-5.37397155531e-2f));
  p = fma(p, z, splat(1.33314422036e-1f));
  p = fma(p, z, splat(-3.33332819422e-1f));
  const Vec near = fma(p * z, x, x);
  const Vec far = splat(1.0f) - splat(2.0f) / (exponential(x + x) + splat(1.0f));
  return pick(above(splat(0.390625f), z), near, far);  // |x| < 0.625
}

// y[i] = f(x[i])
template <typename F>
MH_INLINE void map(Index n, const float* x, float* y, const F& f) {
  for (Index i = 0; i < n; i += kLanes) store_upto(y + i, n - i, f(load_upto(x + i, n - i)));
}
// dx[i] = f(y[i], dy[i])
template <typename F>
MH_INLINE void map_grad(Index n, const float* y, const float* dy, float* dx, const F& f) {
  for (Index i = 0; i < n; i += kLanes) {
    store_upto(dx + i, n - i, f(load_upto(y + i, n - i), load_upto(dy + i, n - i)));
  }
}

inline void relu(Index n, const float* x, float* y) {
  map(n, x, y, [](Vec v) { return larger(zero(), v); });
}
inline void tanh(Index n, const float* x, float* y) {
  map(n, x, y, [](Vec v) { return hyperbolic_tangent(v); });
}
inline void sigmoid(Index n, const float* x, float* y) {
  map(n, x, y, [](Vec v) { return splat(1.0f) / (splat(1.0f) + exponential(zero() - v)); });
}
inline void relu_grad(Index n, const float* y, const float* dy, float* dx) {
  map_grad(n, y, dy, dx, [](Vec yv, Vec d) { return keep(above(yv, zero()), d); });
}
inline void tanh_grad(Index n, const float* y, const float* dy, float* dx) {
  map_grad(n, y, dy, dx, [](Vec yv, Vec d) { return d * (splat(1.0f) - yv * yv); });
}
inline void sigmoid_grad(Index n, const float* y, const float* dy, float* dx) {
  map_grad(n, y, dy, dx, [](Vec yv, Vec d) { return d * yv * (splat(1.0f) - yv); });
}

// The numerator of a softmax, safe against overflow. A NaN among x makes the sum NaN.
inline double exponentials(Index n, const float* x, float* y, float* maximum) {
  float top = x[0];
  for (Index i = 1; i < n; ++i) top = x[i] > top ? x[i] : top;
  map(n, x, y, [=](Vec v) { return exponential(v - splat(top)); });
  double total = 0.0;
  for (Index i = 0; i < n; ++i) total += x[i] == x[i] ? y[i] : x[i];
  *maximum = top;
  return total;
}

}  // namespace mh::MH_ISA
