#include "plan/plan.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/dispatch.h"
#include "plan/layer_elementwise.h"
#include "plan/layer_linear.h"

namespace mh {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

void require_positive(const char* what, const std::array<Index, 2>& pair) {
  if (pair[0] < 1 || pair[1] < 1) {
    refuse(std::string("The ") + what + " is (" + std::to_string(pair[0]) + ", " +
           std::to_string(pair[1]) + "); expected numbers of at least 1.");
  }
}

void require_padding(const std::array<Index, 2>& pair) {
  if (pair[0] < 0 || pair[1] < 0) {
    refuse("The padding is (" + std::to_string(pair[0]) + ", " + std::to_string(pair[1]) +
           "); expected numbers of at least 0.");
  }
}

void require_windows(const PoolGeometry& g) {
  require_positive("pooling window", g.kernel);
  require_positive("pooling stride", g.stride);
  require_padding(g.padding);
}

}  // namespace

Plan::Plan(Shape input, Index max_batch) : input_(input), max_batch_(max_batch), shape_(input) {
  if (input.size() < 1 || max_batch < 1) refuse("A plan needs an input and a batch of at least 1.");
}

void Plan::require_open() const {
  if (rule_) refuse("The plan is finished; add layers before finish().");
  if (loss_) refuse("The plan's layers end with cross_entropy(); add layers before it.");
}

void Plan::require_finished() const {
  if (!rule_) refuse("The plan is not finished; call finish() first.");
}

void Plan::require_image(const char* layer) const {
  if (!shape_.image) {
    refuse(std::string(layer) + " follows a flat row of " + std::to_string(shape_.size()) +
           " features; expected an image (channels, height, width).");
  }
}

void Plan::add(std::unique_ptr<Layer> layer) {
  shape_ = layer->out;
  network_.add(std::move(layer));
}

void Plan::linear(Index outputs, Index inputs, Parameter weight, Parameter bias) {
  require_open();
  if (shape_.image) refuse("linear follows an image; call flatten() before it.");
  if (inputs != shape_.size()) {
    refuse("The linear weight takes " + std::to_string(inputs) + " inputs; expected " +
           std::to_string(shape_.size()) + ", what the layer before gives.");
  }
  add(std::make_unique<LinearLayer>(shape_, outputs, std::move(weight), std::move(bias)));
}

void Plan::conv2d(Index outputs, Index channels, const ConvGeometry& geometry, Parameter weight,
                  Parameter bias) {
  require_open();
  require_image("conv2d");
  require_positive("kernel", geometry.kernel);
  require_positive("stride", geometry.stride);
  require_positive("dilation", geometry.dilation);
  require_padding(geometry.padding);
  if (channels != shape_.channels) {
    refuse("The convolution's weight takes " + std::to_string(channels) + " channels; expected " +
           std::to_string(shape_.channels) + ", what the layer before gives.");
  }
  add(std::make_unique<ConvLayer>(shape_, outputs, geometry, std::move(weight), std::move(bias)));
}

void Plan::relu() {
  require_open();
  if (network_.last() && network_.last()->absorb_relu()) return;
  add(std::make_unique<ActivationLayer>(shape_, Activation::kRelu));
}

void Plan::tanh() {
  require_open();
  add(std::make_unique<ActivationLayer>(shape_, Activation::kTanh));
}

void Plan::sigmoid() {
  require_open();
  add(std::make_unique<ActivationLayer>(shape_, Activation::kSigmoid));
}

void Plan::max_pool2d(const PoolGeometry& geometry) {
  require_open();
  require_image("max_pool2d");
  require_windows(geometry);
  auto pool = std::make_unique<MaxPoolLayer>(shape_, geometry);
  if (network_.last() && network_.last()->release_relu()) pool->absorb_relu();
  add(std::move(pool));
}

void Plan::average_pool2d(const PoolGeometry& geometry) {
  require_open();
  require_image("avg_pool2d");
  require_windows(geometry);
  add(std::make_unique<AveragePoolLayer>(shape_, geometry));
}

void Plan::flatten() {
  require_open();
  shape_ = Shape{shape_.size()};
}

void Plan::dropout(double p) {
  require_open();
  if (!(p >= 0.0 && p <= 1.0)) refuse("Dropout's p is " + std::to_string(p) + "; expected 0 to 1.");
  add(std::make_unique<DropoutLayer>(shape_, p, &random_));
}

void Plan::cross_entropy(double label_smoothing) {
  require_open();
  if (!network_.last() || shape_.image) {
    refuse("cross_entropy follows an image or nothing; expected a row of one logit per class.");
  }
  if (!(label_smoothing >= 0.0 && label_smoothing <= 1.0)) {
    refuse("The label smoothing is " + std::to_string(label_smoothing) + "; expected 0 to 1.");
  }
  loss_ = CrossEntropy{label_smoothing};
}

void Plan::require_states() const {
  for (const Parameter* p : trained_) {
    const auto expected = static_cast<std::size_t>(rule_->states());
    if (p->states.size() != expected) {
      refuse("A trained weight came with " + std::to_string(p->states.size()) +
             " state arrays; expected " + std::to_string(expected) + " for this rule.");
    }
  }
}

void Plan::finish(const Rule& rule, std::optional<double> clip_norm, std::uint64_t seed) {
  if (rule_) refuse("The plan is finished already; finish() is called once.");
  if (!loss_) refuse("The plan has no loss; call cross_entropy() before finish().");
  if (clip_norm && !(*clip_norm > 0.0)) {
    refuse("clip_norm is " + std::to_string(*clip_norm) + "; expected a number above 0.");
  }
  if (clip_norm && !network_.factored_layers().empty()) {
    refuse("clip_norm needs the norm of every gradient, and one in factors is never formed.");
  }
  rule_ = rule;
  trained_ = network_.trained_parameters();
  factored_ = network_.factored_layers();
  try {
    require_states();
  } catch (...) {
    rule_.reset();
    throw;
  }
  clip_norm_ = clip_norm;
  random_ = Random(seed);
  kernels_ = &kernels();
  network_.allocate(*kernels_, input_, max_batch_, clip_norm.has_value());
}

void Plan::check(const Batches& b) const {
  require_finished();
  if (b.batch_size < 1 || b.batch_size > max_batch_) {
    refuse("The batch size is " + std::to_string(b.batch_size) + "; expected 1 to the plan's " +
           std::to_string(max_batch_) + ".");
  }
  for (Index i = 0; i < b.count; ++i) {
    if (b.targets[i] < 0 || b.targets[i] >= shape_.size()) {
      refuse("Target " + std::to_string(i) + " is " + std::to_string(b.targets[i]) +
             "; expected 0 to " + std::to_string(shape_.size() - 1) + ".");
    }
  }
  if (b.factors.size() != factored_.size()) {
    refuse("There is room for the factors of " + std::to_string(b.factors.size()) +
           " weights; expected " + std::to_string(factored_.size()) + ".");
  }
}

void Plan::place_factors(const Batches& b, Index first) {
  for (std::size_t i = 0; i < factored_.size(); ++i) {
    Layer& layer = *factored_[i];
    layer.take_factors({b.factors[i].a + first * layer.in.size(),
                        b.factors[i].d + first * layer.out.size()});
  }
}

// Backward pass and update of one batch whose loss gradient is in the network.
void Plan::update(double rate, std::int64_t step, Index count) {
  RuleStep at = at_step(*rule_, rate, step, 1.0);
  network_.backward(count, clip_norm_ ? nullptr : &at);
  if (clip_norm_) {
    double squares = 0.0;
    for (const Parameter* p : trained_) squares += kernels_->squared_norm(p->size, p->grad.data());
    const double scale = *clip_norm_ / (std::sqrt(squares) + 1e-6);
    at = at_step(*rule_, rate, step, std::isnan(scale) ? scale : std::min(1.0, scale));
  }
  for (Parameter* p : trained_) {
    if (p->updated_in_backward) continue;
    kernels_->update(at, p->size, p->weight, p->grad.data(), p->state(0), p->state(1));
  }
}

Index Plan::train(const Batches& b) {
  check(b);
  Index done = 0;
  for (Index first = 0; first < b.count; first += b.batch_size, ++done) {
    const Index count = std::min(b.batch_size, b.count - first);
    network_.forward(b.x + first * input_.size(), count, true);
    const double loss =
        (*loss_)(*kernels_, count, shape_.size(), network_.outputs(), network_.output_stride(),
                 b.targets + first, network_.output_grads(), network_.output_grad_stride());
    b.losses[done] = loss;
    if (!std::isfinite(loss)) return done;
    place_factors(b, first);
    update(b.rates[done], b.first_step + done, count);
  }
  return done;
}

void Plan::forward(const float* x, Index count, float* out) {
  require_finished();
  for (Index first = 0; first < count; first += max_batch_) {
    const Index n = std::min(max_batch_, count - first);
    network_.forward(x + first * input_.size(), n, false);
    for (Index i = 0; i < n; ++i) {
      const float* row = network_.outputs() + i * network_.output_stride();
      std::copy(row, row + outputs(), out + (first + i) * outputs());
    }
  }
}

}  // namespace mh
