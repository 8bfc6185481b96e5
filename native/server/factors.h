// Updates by factors: activations a [k][in] and errors d [k][rows] of a linear layer, whose product
// d^T a is the gradient (Adam, section 3.2.6).
//
// All factors that wait for a span are joined into one product before the rule is applied, and the
// product goes through the rule straight out of the registers (linear_backward.h): the gradient is
// never in memory.
#pragma once

#include <cstdint>
#include <vector>

#include "server/admission.h"
#include "server/batcher.h"

namespace mh::server {

class Factors {
 public:
  Factors(LaneContext& context, Admission& admission) : context_(context), admission_(admission) {}

  // Applies the run of factors at the queue's `first`; returns where it ends.
  std::size_t apply(const ChunkShape& span, const std::vector<Update>& queue, std::size_t first);

 private:
  struct Joined {
    bool alone = false;         // nothing more may join
    std::vector<bool> skipped;  // chunks that have applied it before; empty: none
    std::size_t samples = 0;
    std::uint32_t steps = 0;
    double rate = 0.0;
    std::vector<const Update*> updates;
    std::vector<double> rates;
  };
  struct Operands {
    const float *a, *d;
  };

  bool fits(const Span& chunks, const Update& next) const;
  std::vector<bool> applied_before(const Span& chunks, const Update& update) const;
  void count(const Span& chunks, const Update& update, double rate);
  Operands operands(const ChunkShape& span, Block& block) const;
  void multiply(const ChunkShape& span, const Operands& operands);
  void apply_joined(const ChunkShape& span);

  LaneContext& context_;
  Admission& admission_;
  Joined joined_;
};

}  // namespace mh::server
