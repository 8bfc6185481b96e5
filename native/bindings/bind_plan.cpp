// Python's way to the plan: checks shapes, keeps the arrays alive, releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <mutex>
#include <stdexcept>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "plan/plan.h"

using namespace nanobind::literals;

namespace mh {
namespace {

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

// A plan together with the arrays it points into.
class BoundPlan {
 public:
  BoundPlan(const std::vector<Index>& input_shape, Index max_batch)
      : plan(shape_of(input_shape), max_batch) {}

  Parameter parameter(const Floats& array, const FloatsList& states, bool trained) {
    Parameter p;
    p.weight = array.data();
    p.size = static_cast<Index>(array.size());
    p.trained = trained;
    kept_.push_back(array);
    for (const Floats& state : states) {
      require(state.size() == array.size(), "A state has shape " + shape_text(state) +
                                                "; expected its weight's " + shape_text(array) +
                                                ".");
      p.states.push_back(state.data());
      kept_.push_back(state);
    }
    return p;
  }

  Parameter bias(const std::optional<Floats>& array, std::size_t outputs, const FloatsList& states,
                 bool trained) {
    if (!array) return {};
    require(array->size() == outputs, "The bias has shape " + shape_text(*array) + "; expected (" +
                                          std::to_string(outputs) + ").");
    return parameter(*array, states, trained);
  }

  Plan plan;
  std::mutex busy;  // a plan's scratch serves one call at a time

 private:
  static Shape shape_of(const std::vector<Index>& s) {
    require(s.size() == 1 || s.size() == 3, "The input has " + std::to_string(s.size()) +
                                                " dimensions; expected (features) or "
                                                "(channels, height, width).");
    for (const Index n : s)
      require(n > 0, "The input shape holds " + std::to_string(n) + "; expected sizes above 0.");
    return s.size() == 1 ? Shape{s[0]} : Shape{s[0], s[1], s[2], true};
  }

  FloatsList kept_;
};

void linear(BoundPlan& self, const Matrix& weight, const std::optional<Floats>& bias,
            const FloatsList& weight_states, const FloatsList& bias_states, bool train_weight,
            bool train_bias, bool factors) {
  require(!(factors && train_weight), "A weight is trained here or leaves as factors, not both.");
  Parameter w = self.parameter(Floats(weight), weight_states, train_weight);
  w.factored = factors;
  Parameter b = self.bias(bias, weight.shape(0), bias_states, train_bias);
  self.plan.linear(static_cast<Index>(weight.shape(0)), static_cast<Index>(weight.shape(1)),
                   std::move(w), std::move(b));
}

void conv2d(BoundPlan& self, const Kernels4d& weight, const std::optional<Floats>& bias,
            Pair stride, Pair padding, Pair dilation, const FloatsList& weight_states,
            const FloatsList& bias_states, bool train_weight, bool train_bias) {
  const Pair kernel{static_cast<Index>(weight.shape(2)), static_cast<Index>(weight.shape(3))};
  Parameter w = self.parameter(Floats(weight), weight_states, train_weight);
  Parameter b = self.bias(bias, weight.shape(0), bias_states, train_bias);
  self.plan.conv2d(static_cast<Index>(weight.shape(0)), static_cast<Index>(weight.shape(1)),
                   {kernel, stride, padding, dilation}, std::move(w), std::move(b));
}

Index count_samples(const Plan& plan, const ConstFloats& x) {
  const Shape in = plan.input();
  const bool image_fits =
      in.image && x.ndim() == 4 && static_cast<Index>(x.shape(1)) == in.channels &&
      static_cast<Index>(x.shape(2)) == in.height && static_cast<Index>(x.shape(3)) == in.width;
  const bool row_fits = !in.image && x.ndim() == 2 && static_cast<Index>(x.shape(1)) == in.channels;
  const std::string expected = in.image
                                   ? std::to_string(in.channels) + ", " +
                                         std::to_string(in.height) + ", " + std::to_string(in.width)
                                   : std::to_string(in.channels);
  require(image_fits || row_fits,
          "The samples have shape " + shape_text(x) + "; expected (N, " + expected + ").");
  return static_cast<Index>(x.shape(0));
}

std::vector<FactorRows> places_of(const Plan& plan, Index count,
                                  const std::vector<std::pair<Matrix, Matrix>>& factors) {
  std::vector<FactorRows> places;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const auto& [a, d] = factors[i];
    require(i < plan.factored().size(), "There are more pairs of factors than factored weights.");
    const Layer& layer = *plan.factored()[i];
    const auto fits = [count](const Matrix& m, Index width) {
      return static_cast<Index>(m.shape(0)) == count && static_cast<Index>(m.shape(1)) == width;
    };
    require(fits(a, layer.in.size()) && fits(d, layer.out.size()),
            "The factors have shapes " + shape_text(a) + " and " + shape_text(d) + "; expected (" +
                std::to_string(count) + ", " + std::to_string(layer.in.size()) + ") and (" +
                std::to_string(count) + ", " + std::to_string(layer.out.size()) + ").");
    places.push_back({a.data(), d.data()});
  }
  return places;
}

Index train(BoundPlan& self, const ConstFloats& x, const ConstIntegers& y, Index batch_size,
            const ConstDoubles& lrs, std::int64_t first_step, const Doubles& losses,
            const std::vector<std::pair<Matrix, Matrix>>& factors) {
  const Index count = count_samples(self.plan, x);
  require(batch_size > 0,
          "The batch size is " + std::to_string(batch_size) + "; expected at least 1.");
  require(first_step > 0,
          "The first step is " + std::to_string(first_step) + "; steps count from 1.");
  const auto batches = static_cast<std::size_t>((count + batch_size - 1) / batch_size);
  require(static_cast<Index>(y.size()) == count, "There are " + std::to_string(y.size()) +
                                                     " targets; expected one for each of the " +
                                                     std::to_string(count) + " samples.");
  require(lrs.size() == batches && losses.size() == batches,
          "There are " + std::to_string(lrs.size()) + " learning rates and room for " +
              std::to_string(losses.size()) + " losses; expected " + std::to_string(batches) +
              ", one for each batch.");
  const Batches b{x.data(),   y.data(),      count,      batch_size,
                  lrs.data(), losses.data(), first_step, places_of(self.plan, count, factors)};
  const nb::gil_scoped_release release;
  const std::lock_guard<std::mutex> lock(self.busy);
  return self.plan.train(b);
}

void forward(BoundPlan& self, const ConstFloats& x, const Matrix& out) {
  const Index count = count_samples(self.plan, x);
  require(static_cast<Index>(out.shape(0)) == count &&
              static_cast<Index>(out.shape(1)) == self.plan.outputs(),
          "The outputs have shape " + shape_text(out) + "; expected (" + std::to_string(count) +
              ", " + std::to_string(self.plan.outputs()) + ").");
  const float* from = x.data();
  float* to = out.data();
  const nb::gil_scoped_release release;
  const std::lock_guard<std::mutex> lock(self.busy);
  self.plan.forward(from, count, to);
}

}  // namespace

void bind_plan(nb::module_& m) {
  nb::class_<BoundPlan>(m, "Plan")
      .def(nb::init<const std::vector<Index>&, Index>(), "input_shape"_a, "max_batch"_a)
      .def("linear", &linear, nb::arg("weight").noconvert(), nb::arg("bias").noconvert().none(),
           nb::arg("weight_states").noconvert(), nb::arg("bias_states").noconvert(),
           "train_weight"_a = true, "train_bias"_a = true, "factors"_a = false)
      .def("conv2d", &conv2d, nb::arg("weight").noconvert(), nb::arg("bias").noconvert().none(),
           "stride"_a, "padding"_a, "dilation"_a, nb::arg("weight_states").noconvert(),
           nb::arg("bias_states").noconvert(), "train_weight"_a = true, "train_bias"_a = true)
      .def("relu", [](BoundPlan& self) { self.plan.relu(); })
      .def("tanh", [](BoundPlan& self) { self.plan.tanh(); })
      .def("sigmoid", [](BoundPlan& self) { self.plan.sigmoid(); })
      .def(
          "max_pool2d",
          [](BoundPlan& self, Pair kernel, Pair stride, Pair padding) {
            self.plan.max_pool2d({kernel, stride, padding});
          },
          "kernel"_a, "stride"_a, "padding"_a)
      .def(
          "avg_pool2d",
          [](BoundPlan& self, Pair kernel, Pair stride, Pair padding) {
            self.plan.average_pool2d({kernel, stride, padding});
          },
          "kernel"_a, "stride"_a, "padding"_a)
      .def("flatten", [](BoundPlan& self) { self.plan.flatten(); })
      .def(
          "dropout", [](BoundPlan& self, double p) { self.plan.dropout(p); }, "p"_a)
      .def(
          "cross_entropy",
          [](BoundPlan& self, double smoothing) { self.plan.cross_entropy(smoothing); },
          "label_smoothing"_a = 0.0)
      .def(
          "finish",
          [](BoundPlan& self, const Rule& rule, std::optional<double> clip_norm,
             std::uint64_t seed) { self.plan.finish(rule, clip_norm, seed); },
          "rule"_a, "clip_norm"_a.none(), "seed"_a)
      .def("train", &train, nb::arg("x").noconvert(), nb::arg("y").noconvert(), "batch_size"_a,
           nb::arg("lrs").noconvert(), "first_step"_a, nb::arg("losses").noconvert(),
           nb::arg("factors").noconvert() = std::vector<std::pair<Matrix, Matrix>>())
      .def("forward", &forward, nb::arg("x").noconvert(), nb::arg("out").noconvert())
      .def_prop_ro("outputs", [](const BoundPlan& self) { return self.plan.outputs(); });
}

}  // namespace mh
