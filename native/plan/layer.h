// What every layer of a plan is: shapes, parameters, and a forward and a backward pass over
// samples.
//
// A layer never allocates in a pass, never waits, and owns no weights: they are shared with other
// processes. Not thread-safe: a plan and its layers belong to one thread at a time.
#pragma once

#include <string>
#include <vector>

#include "plan/buffer.h"
#include "kernels/kernel_table.h"

namespace mh {

// One sample: an image of planes, or a plain row of features (height and width 1).
struct Shape {
  Index channels = 0, height = 1, width = 1;
  bool image = false;
  Index size() const { return channels * height * width; }
};

// A shared weight and its optimizer state, with the private gradient of the current batch.
struct Parameter {
  float* weight = nullptr;
  std::vector<float*> states;
  Index size = 0;
  bool trained = false;
  bool factored = false;  // its gradient leaves as factors: the weight stays, see FactorRows
  bool updated_in_backward = false;
  Buffer grad;
  float* state(std::size_t i) const { return i < states.size() ? states[i] : nullptr; }
};

// Where a linear layer leaves the inputs `a` [rows][in] and errors `d` [rows][out] whose product is
// its weight's gradient (Adam, section 3.2.6).
struct FactorRows {
  float *a = nullptr, *d = nullptr;
};

// Consecutive samples on their way through a layer; rows are ld floats apart and have slack.
struct Samples {
  Index first = 0, count = 0;  // `first`: place in the batch, for what a layer notes per sample
  const float* x = nullptr;
  float* y = nullptr;
  float* dy = nullptr;  // a layer may change it
  float* dx = nullptr;  // null: not wanted
  Index ldx = 0, ldy = 0, lddy = 0, lddx = 0;
  const RuleStep* step = nullptr;  // null: keep the gradients of weights instead of applying them
  bool training = true;
};

struct Setup {
  const KernelTable* kernels;
  Index max_batch;  // samples a batch may have
  Index group;      // samples given at once to layers that work image by image
  bool wants_dx;    // some earlier layer is trained
  bool keep_grads;  // clipping: all gradients are needed before the first update
};

class Layer {
 public:
  Layer(Shape in, Shape out) : in(in), out(out) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  virtual void allocate(const Setup& setup) { kernels = setup.kernels; }
  virtual void begin_batch() {}
  virtual void forward(const Samples& s) = 0;
  virtual void backward(const Samples& s) = 0;
  virtual void end_batch() {}  // after the last samples' backward pass

  // Where the factors of the next batch go. For layers with a factored weight.
  virtual void take_factors(const FactorRows&) {}

  virtual bool whole_batch() const { return false; }
  virtual bool keeps_input() const { return false; }   // backward reads x
  virtual bool keeps_output() const { return false; }  // backward reads y
  virtual Index scratch_floats() const { return 0; }   // per sample, touched in a pass
  // Samples that it wants at once at least, of batches as large as given.
  virtual Index least_group(Index) const { return 4; }
  // Takes over a ReLU that follows, if it can.
  virtual bool absorb_relu() { return false; }
  // Gives a ReLU that it took over back to a max pooling that follows: the larger of two
  // numbers is the same before and after a ReLU, and there are fewer of them behind the pool.
  virtual bool release_relu() { return false; }

  bool trained() const {
    for (const Parameter& p : parameters) {
      if (p.trained || p.factored) return true;
    }
    return false;
  }

  const Shape in, out;
  std::vector<Parameter> parameters;

 protected:
  const KernelTable* kernels = nullptr;
};

}  // namespace mh
