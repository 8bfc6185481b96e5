// Python's way to the sparse trainer: checks shapes, keeps the arrays alive, releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <mutex>
#include <stdexcept>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/bound_index.h"
#include "sparse/trainer.h"

using namespace nanobind::literals;

namespace mh {
namespace {

using Columns = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstLine = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

Sharing share_named(const std::string& name) {
  require(name == "batch" || name == "sample",
          "share is '" + name + "'; expected 'batch' or 'sample'.");
  return name == "batch" ? Sharing::kBatch : Sharing::kSample;
}

SparseLoss loss_named(const std::string& name) {
  require(name == "softmax" || name == "sigmoid",
          "loss is '" + name + "'; expected 'softmax' or 'sigmoid'.");
  return name == "softmax" ? SparseLoss::kSoftmax : SparseLoss::kSigmoid;
}

SamplingSettings sampling_named(const std::string& choice, Index limit, Index floor, int votes,
                                Index hardest) {
  require(choice == "vanilla" || choice == "topk" || choice == "threshold",
          "The choice is '" + choice + "'; expected 'vanilla', 'topk' or 'threshold'.");
  require(limit >= 0 && floor >= 0 && votes >= 1 && hardest >= 0,
          "The limit, floor, votes and hardest are " + std::to_string(limit) + ", " +
              std::to_string(floor) + ", " + std::to_string(votes) + " and " +
              std::to_string(hardest) + "; expected at least 0, 0, 1 and 0.");
  const Choice which = choice == "vanilla" ? Choice::kVanilla
                       : choice == "topk"  ? Choice::kTopK
                                           : Choice::kThreshold;
  return {which, limit, floor, votes, hardest};
}

// Rows of numbers, compressed; the last offset must be their number.
void require_rows(const char* what, const ConstIntegers& offsets, std::size_t samples,
                  std::size_t numbers) {
  require(offsets.size() == samples + 1, std::string("There are ") +
                                             std::to_string(offsets.size()) + " offsets of " +
                                             what + "; expected " + std::to_string(samples + 1) +
                                             ", one more than samples.");
  require(offsets.data()[samples] <= static_cast<std::int64_t>(numbers),
          std::string("The last offset of ") + what + " is " +
              std::to_string(offsets.data()[samples]) + "; expected at most " +
              std::to_string(numbers) + ".");
}

// A trainer together with the arrays and the index it points into.
class BoundTrainer {
 public:
  BoundTrainer(Index max_batch, int threads) : trainer(max_batch, threads) {}

  Parameter parameter(const Floats& array, const FloatsList& states) {
    Parameter p;
    p.weight = array.data();
    p.size = static_cast<Index>(array.size());
    p.trained = true;
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

  // A matrix with states that lie like it: rows as far apart.
  Parameter rows(const Rows& weight, const RowsList& states) {
    Parameter p;
    p.weight = weight.data();
    p.size = static_cast<Index>(weight.size());
    p.trained = true;
    kept_rows_.push_back(weight);
    for (const Rows& state : states) {
      require(state.shape(0) == weight.shape(0) && state.shape(1) == weight.shape(1),
              "A state has shape " + shape_text(state) + "; expected its weight's " +
                  shape_text(weight) + ".");
      require(row_stride(state) == row_stride(weight),
              "A state's rows are " + std::to_string(row_stride(state)) +
                  " floats apart; expected " + std::to_string(row_stride(weight)) +
                  ", as its weight's.");
      p.states.push_back(state.data());
      kept_rows_.push_back(state);
    }
    return p;
  }

  Parameter bias(const std::optional<Floats>& array, std::size_t outputs,
                 const FloatsList& states) {
    if (!array) return {};
    require(array->size() == outputs, "The bias has shape " + shape_text(*array) + "; expected (" +
                                          std::to_string(outputs) + ").");
    return parameter(*array, states);
  }

  SparseTrainer trainer;
  nb::object index;  // kept alive
  std::mutex busy;

 private:
  FloatsList kept_;
  RowsList kept_rows_;
};

void hidden(BoundTrainer& self, const Rows& weight, const std::optional<Floats>& bias,
            const RowsList& weight_states, const FloatsList& bias_states, bool sparse) {
  HiddenLayer layer;
  layer.sparse = sparse;
  layer.in = static_cast<Index>(weight.shape(sparse ? 0 : 1));
  layer.out = static_cast<Index>(weight.shape(sparse ? 1 : 0));
  layer.stride = row_stride(weight);
  require(sparse || layer.stride == layer.in,
          "The rows of a dense layer's weight lie apart; expected them one after another.");
  layer.weight = self.rows(weight, weight_states);
  layer.bias = self.bias(bias, static_cast<std::size_t>(layer.out), bias_states);
  self.trainer.hidden(std::move(layer));
}

void output(BoundTrainer& self, const Rows& weight, const std::optional<Floats>& bias,
            const RowsList& weight_states, const FloatsList& bias_states) {
  Parameter w = self.rows(weight, weight_states);
  Parameter b = self.bias(bias, weight.shape(0), bias_states);
  self.trainer.output(static_cast<Index>(weight.shape(0)), static_cast<Index>(weight.shape(1)),
                      row_stride(weight), std::move(w), std::move(b));
}

void choose_by(BoundTrainer& self, nb::object index, const std::string& choice, Index limit,
               Index floor, int votes, Index hardest) {
  BoundIndex& chosen = nb::cast<BoundIndex&>(index);
  const IndexSettings& s = chosen.settings();
  const SparseNet& net = self.trainer.net();
  require(s.neurons == net.neurons && s.width == net.width,
          "The index holds " + std::to_string(s.neurons) + " neurons of width " +
              std::to_string(s.width) + "; expected " + std::to_string(net.neurons) + " and " +
              std::to_string(net.width) + ", the output layer's.");
  const SamplingSettings sampling = sampling_named(choice, limit, floor, votes, hardest);
  {
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(self.busy);
    self.trainer.choose_by(&chosen, sampling);
  }
  self.index = std::move(index);
}

void take_weight(BoundTrainer& self) {
  const nb::gil_scoped_release release;
  const std::lock_guard<std::mutex> lock(self.busy);
  self.trainer.take_weight();
}

void catch_up(BoundTrainer& self) {
  const nb::gil_scoped_release release;
  const std::lock_guard<std::mutex> lock(self.busy);
  self.trainer.catch_up();
}

struct Inputs {
  std::optional<ConstIntegers> offsets;
  std::optional<Columns> columns;
  std::optional<ConstLine> values;
  std::optional<ConstMatrix> dense;
};

std::size_t place_inputs(const Inputs& inputs, const SparseNet& net, SparsePiece& piece) {
  if (inputs.dense) {
    const auto in = static_cast<std::size_t>(net.hidden.empty() ? 0 : net.hidden.front().in);
    require(inputs.dense->shape(1) == in, "The inputs have shape " + shape_text(*inputs.dense) +
                                              "; expected " + std::to_string(in) + " columns.");
    piece.dense = inputs.dense->data();
    return inputs.dense->shape(0);
  }
  require(inputs.offsets && inputs.columns && inputs.offsets->size() > 0,
          "The inputs have no offsets and columns; expected them, or a dense matrix.");
  const std::size_t samples = inputs.offsets->size() - 1;
  require_rows("features", *inputs.offsets, samples, inputs.columns->size());
  require(!inputs.values || inputs.values->size() == inputs.columns->size(),
          "There are not as many values as columns.");
  piece.x = {inputs.offsets->data(), inputs.columns->data(),
             inputs.values ? inputs.values->data() : nullptr};
  return samples;
}

Index train(BoundTrainer& self, const std::optional<ConstIntegers>& offsets,
            const std::optional<Columns>& columns, const std::optional<ConstLine>& values,
            const std::optional<ConstMatrix>& dense, const ConstIntegers& label_offsets,
            const Columns& labels, Index batch_size, const ConstDoubles& rates,
            std::int64_t first_step, std::uint64_t seed, const Doubles& losses,
            const std::optional<ConstIntegers>& active_offsets,
            const std::optional<Columns>& active) {
  SparsePiece piece;
  const SparseNet& net = self.trainer.net();
  const std::size_t samples = place_inputs({offsets, columns, values, dense}, net, piece);
  require_rows("labels", label_offsets, samples, labels.size());
  piece.count = static_cast<Index>(samples);
  piece.batch_size = batch_size;
  require(batch_size >= 1, "The batch size is " + std::to_string(batch_size) +
                               "; expected at least 1.");
  const auto batches = static_cast<std::size_t>(units_of(piece.count, batch_size));
  require(rates.size() == batches && losses.size() == batches,
          "There are " + std::to_string(rates.size()) + " rates and " +
              std::to_string(losses.size()) + " losses; expected " + std::to_string(batches) +
              ", one per batch.");
  piece.labels = {label_offsets.data(), labels.data()};
  if (active_offsets && active) {
    const std::size_t sets = net.share == Sharing::kSample ? samples : batches;
    require_rows("active neurons", *active_offsets, sets, active->size());
    piece.named = {active_offsets->data(), active->data()};
  }
  piece.rates = rates.data();
  piece.losses = losses.data();
  piece.first_step = first_step;
  piece.seed = seed;
  const nb::gil_scoped_release release;
  const std::lock_guard<std::mutex> lock(self.busy);
  return self.trainer.train(piece);
}

nb::dict figures(BoundTrainer& self) {
  const Figures f = [&] {
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(self.busy);
    return self.trainer.figures();
  }();
  nb::dict out;
  out["batches"] = f.batches;
  out["samples"] = f.samples;
  out["active_rows"] = f.active_rows;
  out["feature_rows"] = f.feature_rows;
  out["bytes"] = f.bytes;
  out["hidden_s"] = f.hidden_s;
  out["choose_s"] = f.choose_s;
  out["logits_s"] = f.logits_s;
  out["loss_s"] = f.loss_s;
  out["gradient_s"] = f.gradient_s;
  out["update_s"] = f.update_s;
  out["hidden_update_s"] = f.hidden_update_s;
  return out;
}

// A copy of an array that belongs to the trainer.
template <typename To, typename From>
nb::object copied(const std::vector<From>& from, std::size_t columns) {
  auto* data = new To[from.size() + 1];
  for (std::size_t i = 0; i < from.size(); ++i) data[i] = static_cast<To>(from[i]);
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<To*>(p); });
  if (columns == 0) {
    return nb::cast(nb::ndarray<nb::numpy, To, nb::ndim<1>>(data, {from.size()}, owner));
  }
  const std::size_t rows = from.size() / columns;
  return nb::cast(nb::ndarray<nb::numpy, To, nb::ndim<2>>(data, {rows, columns}, owner));
}

nb::tuple collected(const BoundTrainer& self) {
  const CollectedRows* rows = self.trainer.collected();
  const SparseNet& net = self.trainer.net();
  const auto hidden = static_cast<std::size_t>(net.hidden.front().out);
  return nb::make_tuple(
      copied<std::int64_t>(rows[0].rows, 0), copied<float>(rows[0].grads, hidden),
      copied<std::int64_t>(rows[1].rows, 0),
      copied<float>(rows[1].grads, static_cast<std::size_t>(net.width)),
      copied<float>(rows[1].bias_grads, 0));
}

}  // namespace

void bind_sparse_trainer(nb::module_& m) {
  nb::class_<BoundTrainer>(m, "SparseTrainer")
      .def(nb::init<Index, int>(), "max_batch"_a, "threads"_a)
      .def("hidden", &hidden, nb::arg("weight").noconvert(), nb::arg("bias").noconvert().none(),
           nb::arg("weight_states").noconvert(), nb::arg("bias_states").noconvert(), nb::kw_only(),
           "sparse"_a)
      .def("output", &output, nb::arg("weight").noconvert(), nb::arg("bias").noconvert().none(),
           nb::arg("weight_states").noconvert(), nb::arg("bias_states").noconvert())
      .def("choose_by", &choose_by, "index"_a, nb::kw_only(), "choice"_a, "limit"_a, "floor"_a,
           "votes"_a, "hardest"_a = 0)
      .def(
          "finish",
          [](BoundTrainer& self, const Rule& rule, const std::string& share,
             const std::string& loss, bool collect, bool narrow) {
            self.trainer.finish(rule, share_named(share), loss_named(loss), collect, narrow);
          },
          "rule"_a, nb::kw_only(), "share"_a, "loss"_a, "collect"_a = false, "narrow"_a = false)
      .def("take_weight", &take_weight)
      .def("catch_up", &catch_up)
      .def("train", &train, nb::kw_only(), nb::arg("offsets").noconvert().none() = nb::none(),
           nb::arg("columns").noconvert().none() = nb::none(),
           nb::arg("values").noconvert().none() = nb::none(),
           nb::arg("dense").noconvert().none() = nb::none(), nb::arg("label_offsets").noconvert(),
           nb::arg("labels").noconvert(), "batch_size"_a, nb::arg("rates").noconvert(),
           "first_step"_a, "seed"_a, nb::arg("losses").noconvert(),
           nb::arg("active_offsets").noconvert().none() = nb::none(),
           nb::arg("active").noconvert().none() = nb::none())
      .def("figures", &figures)
      .def("collected", &collected);
}

}  // namespace mh
