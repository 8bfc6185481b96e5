// The kernels of one instruction set, as function pointers that know nothing of it.
#pragma once

#include <cstddef>

#include "rule_step.h"

namespace mh {

struct KernelTable {
  const char* name;
  int lanes;

  // state0 and state1 may be null when the rule keeps fewer states.
  void (*update)(const RuleStep& step, std::ptrdiff_t n, float* weight, const float* grad,
                 float* state0, float* state1);
  double (*squared_norm)(std::ptrdiff_t n, const float* x);
  void (*average)(std::ptrdiff_t n, float* averaged, const float* weight, float share);
};

}  // namespace mh
