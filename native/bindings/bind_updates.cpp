// Python's way to the flat walks over parameters: update, update_rows, squared_norm, average.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "kernels/dispatch.h"

using namespace nanobind::literals;

namespace mh {
namespace {

struct Walk {
  std::ptrdiff_t size;
  float* weight;
  const float* grad;
  float* states[2];
};

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

void require_states(const Rule& rule, const FloatsList& states, std::size_t size) {
  require(states.size() == static_cast<std::size_t>(rule.states()),
          "A weight came with " + std::to_string(states.size()) + " state arrays; expected " +
              std::to_string(rule.states()) + " for this rule.");
  for (const Floats& state : states) {
    require(state.size() == size, "A state has " + std::to_string(state.size()) +
                                      " elements; expected its weight's " + std::to_string(size) +
                                      ".");
  }
}

Walk walk_over(const Rule& rule, const Floats& weight, const ConstFloats& grad,
               const FloatsList& states) {
  require(grad.size() == weight.size(), "A gradient has shape " + shape_text(grad) +
                                            "; expected its weight's " + shape_text(weight) + ".");
  require_states(rule, states, weight.size());
  Walk walk{static_cast<std::ptrdiff_t>(weight.size()), weight.data(), grad.data(), {}};
  for (std::size_t i = 0; i < states.size(); ++i) walk.states[i] = states[i].data();
  return walk;
}

void update_all(const Rule& rule, double lr, std::int64_t step, double grad_scale,
                const FloatsList& weights, const std::vector<ConstFloats>& grads,
                const std::vector<FloatsList>& states) {
  require(grads.size() == weights.size() && states.size() == weights.size(),
          "update got " + std::to_string(weights.size()) + " weights, " +
              std::to_string(grads.size()) + " gradients and " + std::to_string(states.size()) +
              " lists of states; expected as many of each.");
  std::vector<Walk> walks;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    walks.push_back(walk_over(rule, weights[i], grads[i], states[i]));
  }
  const RuleStep at = at_step(rule, lr, step, grad_scale);
  const nb::gil_scoped_release release;
  const KernelTable& table = kernels();
  for (const Walk& w : walks) {
    table.update(at, w.size, w.weight, w.grad, w.states[0], w.states[1]);
  }
}

void require_rows(const ConstIntegers& rows, std::size_t height) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t row = rows.data()[i];
    require(row >= 0 && row < static_cast<std::int64_t>(height),
            "A row number is " + std::to_string(row) + "; expected 0 to " +
                std::to_string(height - 1) + ".");
  }
}

void update_rows(const Rule& rule, double lr, std::int64_t step, double grad_scale,
                 const Matrix& weight, const ConstIntegers& rows, const ConstMatrix& grads,
                 const FloatsList& states, const std::optional<ConstFloats>& keep) {
  require(grads.shape(0) == rows.size() && grads.shape(1) == weight.shape(1),
          "The row gradients have shape " + shape_text(grads) + "; expected (" +
              std::to_string(rows.size()) + ", " + std::to_string(weight.shape(1)) + ").");
  require_states(rule, states, weight.size());
  require_rows(rows, weight.shape(0));
  require(!keep || keep->size() == rows.size(),
          "There are " + std::to_string(keep ? keep->size() : 0) + " shares to keep for " +
              std::to_string(rows.size()) + " rows; expected one for each.");
  const RuleStep at = at_step(rule, lr, step, grad_scale);
  const auto width = static_cast<std::ptrdiff_t>(weight.shape(1));
  float* bases[2] = {nullptr, nullptr};
  for (std::size_t i = 0; i < states.size(); ++i) bases[i] = states[i].data();
  const auto count = static_cast<std::ptrdiff_t>(rows.size());
  const std::int64_t* numbers = rows.data();
  float* base = weight.data();
  const float* grad = grads.data();
  const float* shares = keep ? keep->data() : nullptr;
  const nb::gil_scoped_release release;
  const KernelTable& table = kernels();
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const std::ptrdiff_t at_row = numbers[i] * width;
    if (shares != nullptr) {
      for (std::ptrdiff_t j = 0; j < width; ++j) base[at_row + j] *= shares[i];
    }
    table.update(at, width, base + at_row, grad + i * width, bases[0] ? bases[0] + at_row : nullptr,
                 bases[1] ? bases[1] + at_row : nullptr);
  }
}

double squared_norm(const std::vector<ConstFloats>& arrays) {
  std::vector<std::pair<std::ptrdiff_t, const float*>> spans;
  for (const ConstFloats& a : arrays) {
    spans.emplace_back(static_cast<std::ptrdiff_t>(a.size()), a.data());
  }
  const nb::gil_scoped_release release;
  double total = 0.0;
  for (const auto& [size, data] : spans) total += kernels().squared_norm(size, data);
  return total;
}

void average(const FloatsList& averaged, const std::vector<ConstFloats>& weights, double decay) {
  require(averaged.size() == weights.size(), "average got " + std::to_string(averaged.size()) +
                                                 " averages and " + std::to_string(weights.size()) +
                                                 " weights; expected as many of each.");
  std::vector<Walk> walks;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    require(averaged[i].size() == weights[i].size(),
            "An average has shape " + shape_text(averaged[i]) + "; expected its weight's " +
                shape_text(weights[i]) + ".");
    walks.push_back({static_cast<std::ptrdiff_t>(averaged[i].size()),
                     averaged[i].data(),
                     weights[i].data(),
                     {}});
  }
  const auto share = static_cast<float>(1.0 - decay);
  const nb::gil_scoped_release release;
  for (const Walk& w : walks) kernels().average(w.size, w.weight, w.grad, share);
}

void construct_rule(Rule* self, const std::string& name, double momentum, bool nesterov,
                    double weight_decay, double beta1, double beta2, double eps, std::int64_t delay) {
  new (self) Rule(name, RuleSettings{momentum, nesterov, weight_decay, beta1, beta2, eps, delay});
}

}  // namespace

void bind_updates(nb::module_& m) {
  nb::class_<Rule>(m, "Rule")
      .def("__init__", &construct_rule, "name"_a, nb::kw_only(), "momentum"_a = 0.0,
           "nesterov"_a = false, "weight_decay"_a = 0.0, "beta1"_a = 0.9, "beta2"_a = 0.999,
           "eps"_a = 1e-8, "delay"_a = 1)
      .def_prop_ro("states", &Rule::states);
  m.def("update", &update_all, "rule"_a, "lr"_a, "step"_a, "grad_scale"_a,
        nb::arg("weights").noconvert(), nb::arg("grads").noconvert(),
        nb::arg("states").noconvert());
  m.def("update_rows", &update_rows, "rule"_a, "lr"_a, "step"_a, "grad_scale"_a,
        nb::arg("weight").noconvert(), nb::arg("rows").noconvert(), nb::arg("grads").noconvert(),
        nb::arg("states").noconvert(), nb::arg("keep").noconvert().none() = nb::none());
  m.def("squared_norm", &squared_norm, nb::arg("arrays").noconvert());
  m.def("average", &average, nb::arg("averaged").noconvert(), nb::arg("weights").noconvert(),
        "decay"_a);
}

}  // namespace mh
