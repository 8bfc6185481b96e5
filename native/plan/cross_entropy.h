// The mean cross entropy of a batch and its gradient, as torch.nn.CrossEntropyLoss defines them.
#pragma once

#include "kernels/kernel_table.h"

namespace mh {

struct CrossEntropy {
  double label_smoothing = 0.0;

  // Writes the gradient of the mean over `batch` rows and returns the mean.
  double operator()(const KernelTable& kernels, Index batch, Index classes, const float* logits,
                    Index ld_logits, const std::int64_t* targets, float* grads,
                    Index ld_grads) const;
};

}  // namespace mh
