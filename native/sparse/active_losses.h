// Losses over active logits, for one panel of samples: lanes are samples, so nothing is summed
// across a vector.
#pragma once

#include "kernels/elementwise.h"
#include "sparse/active_products.h"

namespace mh::MH_ISA {

constexpr Index kSumRows = 32;  // summed by themselves first, which keeps the rounding small

// logits = exp(logits - top); tops and sums have one value per sample of the panel. A NaN among a
// sample's logits makes its sum NaN.
inline void active_exponentials(const ActiveBatch& p, Index panel, float* tops, float* sums) {
  float* z = logits_of(p, panel, 0);
  for (int v = 0; v < 2; ++v, z += kLanes) {
    Vec top = splat(-3.4e38f), total = zero();
    for (Index i = 0; i < p.count; ++i) top = larger(top, load(z + i * kPanel));
    for (Index i = 0; i < p.count; i += kSumRows) {
      const Index end = smaller(i + kSumRows, p.count);
      Vec sum = zero();
      for (Index j = i; j < end; ++j) {
        const Vec x = load(z + j * kPanel);
        const Vec e = exponential(x - top);
        store(z + j * kPanel, e);
        sum = sum + pick(same(x, x), e, x);
      }
      total = total + sum;
    }
    store(tops + v * kLanes, top);
    store(sums + v * kLanes, total);
  }
}

// logits = sigmoid(logits); losses[sample] = the sum of log(1 + exp(logit)) over the active rows.
//
// With u = exp(-|z|) a term is max(z, 0) + log(1 + u). Sums of logarithms are logarithms of
// products: a factor is at most 2, so 32 of them fit a float. Factors that a float would round to 1
// are summed as the series instead.
inline void active_sigmoids(const ActiveBatch& p, Index panel, double* losses) {
  float* z = logits_of(p, panel, 0);
  const Vec one = splat(1.0f), small = splat(1.0f / 4096.0f), half = splat(0.5f);
  for (int v = 0; v < 2; ++v, z += kLanes) {
    float logarithms[kLanes], sums[kLanes];
    double total[kLanes] = {};
    for (Index i = 0; i < p.count; i += kSumRows) {
      const Index end = smaller(i + kSumRows, p.count);
      Vec sum = zero(), product = one;
      for (Index j = i; j < end; ++j) {
        const Vec x = load(z + j * kPanel);
        const Vec u = exponential(zero() - larger(x, zero() - x));
        const Mask large = above(u, small);
        product = product * pick(large, one + u, one);
        sum = sum + (larger(zero(), x) + pick(large, zero(), u - half * u * u));
        const Vec y = pick(above(x, zero()), one, u) / (one + u);
        store(z + j * kPanel, pick(same(x, x), y, x));
      }
      store(logarithms, product);
      store(sums, sum);
      for (int lane = 0; lane < kLanes; ++lane) {
        total[lane] += static_cast<double>(sums[lane]) + __builtin_log(logarithms[lane]);
      }
    }
    for (int lane = 0; lane < kLanes; ++lane) losses[v * kLanes + lane] = total[lane];
  }
}

// x * scale, into the panels that the weight gradient reads.
inline void active_scaled(const ActiveBatch& p, Index panel) {
  const Index first = panel * kPanel, end = smaller(first + kPanel, p.batch);
  for (Index b = first; b < end; ++b) {
    const Vec scale = splat(p.scale[b]);
    const float* x = p.x + b * p.ldx;
    for (Index k = 0; k < p.width; k += kPanel) {
      float* to = p.x_panels + k * p.batch + b * kPanel;
      store(to, scale * load_upto(x + k, p.width - k));
      store(to + kLanes, scale * load_upto(x + k + kLanes, p.width - k - kLanes));
    }
  }
}

}  // namespace mh::MH_ISA
