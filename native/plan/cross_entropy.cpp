#include "plan/cross_entropy.h"

#include <cmath>

namespace mh {

double CrossEntropy::operator()(const KernelTable& kernels, Index batch, Index classes,
                                const float* logits, Index ld_logits, const std::int64_t* targets,
                                float* grads, Index ld_grads) const {
  const double smooth = label_smoothing / static_cast<double>(classes);
  const double sure = 1.0 - label_smoothing;
  const double share = 1.0 / static_cast<double>(batch);
  double total = 0.0;
  for (Index b = 0; b < batch; ++b) {
    const float* x = logits + b * ld_logits;
    float* grad = grads + b * ld_grads;
    float top;
    const double sum = kernels.exponentials(classes, x, grad, &top);
    const double log_sum = std::log(sum) + static_cast<double>(top);
    double all = 0.0;
    const auto scale = static_cast<float>(share / sum), less = static_cast<float>(smooth * share);
    for (Index c = 0; c < classes; ++c) {
      all += static_cast<double>(x[c]);
      grad[c] = grad[c] * scale - less;
    }
    grad[targets[b]] -= static_cast<float>(sure * share);
    total += log_sum - sure * static_cast<double>(x[targets[b]]) - smooth * all;
  }
  return total * share;
}

}  // namespace mh
