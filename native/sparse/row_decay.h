// Weight decay of rows of which a step touches only some: the decay that a row misses while nobody
// touches it is made good when somebody does.
//
//   step            1        2        3        4
//   row 7           touched                    touched
//   its weights     decay,   wait     wait     decay three times at once,
//                   move                       move
//
// Rates change from step to step, so the logarithms of what steps leave are summed, and a row
// remembers the sum up to which it has decayed. The hash tables are not told: a row that only
// shrinks points where it did.
#pragma once

#include <cstdint>
#include <vector>

#include "sparse/units.h"

namespace mh {

class RowDecay {
 public:
  RowDecay(Index rows, double decay) : decay_(decay), made_good_(static_cast<std::size_t>(rows)) {}

  // A step begins, which lets weights decay by rate * decay.
  void count_step(double rate);

  // Lets these rows decay for all steps since they did. Any thread; who comes first does it. Both
  // parameters have the same rows, and the second may be without a weight.
  void make_good(const KernelTable& kernels, const RowArrays& weight, const RowArrays& bias,
                 const std::int32_t* rows, Index count);

  // The same for all rows.
  void make_all_good(const KernelTable& kernels, const RowArrays& weight, const RowArrays& bias,
                     Team& team);

 private:
  const double decay_;
  double total_ = 0.0;
  std::vector<double> made_good_;
};

}  // namespace mh
