// Python's way to the index of a sparse layer: checks shapes and values, releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/bound_index.h"

using namespace nanobind::literals;

namespace mh {
namespace {

using ConstLabels = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstValues = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

// Gives an array to Python, which frees it.
template <typename T>
nb::ndarray<nb::numpy, T> give(std::vector<T>&& values, std::initializer_list<std::size_t> shape) {
  auto* kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(kept->data(), shape.size(), shape.begin(), owner);
}

HashKind kind_of(const std::string& family) {
  if (family == "simhash") return HashKind::kSimHash;
  if (family == "wta") return HashKind::kWta;
  if (family == "dwta") return HashKind::kDwta;
  require(family == "minhash", "The hash family is '" + family +
                                   "'; expected 'simhash', 'wta', 'dwta' or 'minhash'.");
  return HashKind::kMinHash;
}

Filling filling_of(const std::string& filling) {
  if (filling == "fifo") return Filling::kFifo;
  require(filling == "reservoir",
          "The filling of buckets is '" + filling + "'; expected 'fifo' or 'reservoir'.");
  return Filling::kReservoir;
}

SamplingSettings sampling_of(const std::string& choice, Index limit, Index floor, int votes) {
  require(choice == "vanilla" || choice == "topk" || choice == "threshold",
          "The choice is '" + choice + "'; expected 'vanilla', 'topk' or 'threshold'.");
  require(limit >= 0, "The limit is " + std::to_string(limit) + "; expected 0 or more.");
  require(floor >= 0, "The floor is " + std::to_string(floor) + "; expected 0 or more.");
  require(votes >= 1, "The votes needed are " + std::to_string(votes) + "; expected 1 or more.");
  const Choice which = choice == "vanilla" ? Choice::kVanilla
                       : choice == "topk"  ? Choice::kTopK
                                           : Choice::kThreshold;
  return {which, limit, floor, votes};
}

void construct(BoundIndex* self, Index neurons, Index width, const std::string& family, int hashes,
               int tables, int bucket, int bin, double density, const std::string& filling,
               std::uint64_t seed) {
  new (self) BoundIndex(IndexSettings{kind_of(family), neurons, width, hashes, tables, bucket, bin,
                                      density, filling_of(filling), seed});
}

void require_threads(int threads) {
  require(threads >= 1 && threads <= 1024,
          "The number of threads is " + std::to_string(threads) + "; expected 1 to 1024.");
}

WeightRows weight_rows(const LshIndex& self, const ConstRows& weight) {
  const IndexSettings& s = self.settings();
  require(static_cast<Index>(weight.shape(0)) == s.neurons &&
              static_cast<Index>(weight.shape(1)) == s.width,
          "The weight has shape " + shape_text(weight) + "; expected (" +
              std::to_string(s.neurons) + ", " + std::to_string(s.width) + ").");
  return {weight.data(), row_stride(weight)};
}

Index require_inputs(const LshIndex& self, const ConstMatrix& x) {
  require(static_cast<Index>(x.shape(1)) == self.settings().width,
          "The inputs have shape " + shape_text(x) + "; expected (N, " +
              std::to_string(self.settings().width) + ").");
  return static_cast<Index>(x.shape(0));
}

void require_offsets(const ConstIntegers& offsets, std::size_t rows, std::size_t entries) {
  const std::int64_t* at = offsets.data();
  require(offsets.size() == rows + 1, "There are " + std::to_string(offsets.size()) +
                                          " offsets; expected " + std::to_string(rows + 1) +
                                          ", one more than rows.");
  require(at[0] == 0 && at[rows] == static_cast<std::int64_t>(entries),
          "The offsets go from " + std::to_string(at[0]) + " to " + std::to_string(at[rows]) +
              "; expected 0 to " + std::to_string(entries) + ".");
  for (std::size_t i = 0; i < rows; ++i) {
    require(at[i] <= at[i + 1], "Offset " + std::to_string(i + 1) + " is " +
                                    std::to_string(at[i + 1]) + " after " + std::to_string(at[i]) +
                                    "; expected offsets that don't fall.");
  }
}

template <typename Array>
void require_numbers(const Array& numbers, Index end, const char* what) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto number = static_cast<Index>(numbers.data()[i]);
    require(number >= 0 && number < end, std::string("A ") + what + " is " +
                                             std::to_string(number) + "; expected 0 to " +
                                             std::to_string(end - 1) + ".");
  }
}

LabelRows label_rows(const LshIndex& self, const std::optional<ConstIntegers>& offsets,
                     const std::optional<ConstLabels>& labels, Index batch) {
  if (!offsets && !labels) return {nullptr, nullptr};
  require(offsets && labels, "Labels came without offsets or offsets without labels; expected both "
                             "or neither.");
  require_offsets(*offsets, static_cast<std::size_t>(batch), labels->size());
  require_numbers(*labels, self.settings().neurons, "label");
  return {offsets->data(), labels->data()};
}

void build(BoundIndex& self, const ConstRows& weight, int threads) {
  const WeightRows from = weight_rows(self, weight);
  require_threads(threads);
  const nb::gil_scoped_release release;
  Team team(threads);
  self.build(from, team);
}

Index refresh(BoundIndex& self, const ConstRows& weight, int threads) {
  const WeightRows from = weight_rows(self, weight);
  require_threads(threads);
  const nb::gil_scoped_release release;
  Team team(threads);
  return self.refresh(from, team);
}

void rebuild(BoundIndex& self, const ConstRows& weight, std::uint64_t seed, int threads) {
  const WeightRows from = weight_rows(self, weight);
  require_threads(threads);
  const nb::gil_scoped_release release;
  Team team(threads);
  self.rebuild(from, seed, team);
}

auto codes(BoundIndex& self, const ConstMatrix& x) {
  const Index n = require_inputs(self, x);
  const auto tables = static_cast<std::size_t>(self.settings().tables);
  std::vector<std::uint32_t> out(static_cast<std::size_t>(n) * tables);
  const float* from = x.data();
  {
    const nb::gil_scoped_release release;
    self.codes(from, self.settings().width, n, out.data());
  }
  return give(std::move(out), {static_cast<std::size_t>(n), tables});
}

auto codes_sparse(BoundIndex& self, const ConstIntegers& offsets, const ConstLabels& columns,
                  const std::optional<ConstValues>& values) {
  require(offsets.size() >= 1, "There are no offsets; expected one more than rows.");
  const std::size_t n = offsets.size() - 1;
  require_offsets(offsets, n, columns.size());
  require_numbers(columns, self.settings().width, "column");
  require(!values || values->size() == columns.size(),
          "There are " + std::to_string(values ? values->size() : 0) + " values; expected " +
              std::to_string(columns.size()) + ", one for each column.");
  for (std::size_t i = 0; i < n; ++i) {
    for (std::int64_t at = offsets.data()[i] + 1; at < offsets.data()[i + 1]; ++at) {
      require(columns.data()[at - 1] < columns.data()[at],
              "Row " + std::to_string(i) + " has column " + std::to_string(columns.data()[at]) +
                  " after " + std::to_string(columns.data()[at - 1]) +
                  "; expected columns that rise.");
    }
  }
  const auto tables = static_cast<std::size_t>(self.settings().tables);
  std::vector<std::uint32_t> out(n * tables);
  const std::int64_t* starts = offsets.data();
  const std::int32_t* numbers = columns.data();
  const float* given = values ? values->data() : nullptr;
  {
    const nb::gil_scoped_release release;
    self.codes_sparse(starts, numbers, given, static_cast<Index>(n), out.data());
  }
  return give(std::move(out), {n, tables});
}

void see_inputs(BoundIndex& self, const ConstMatrix& x) {
  const Index batch = require_inputs(self, x);
  self.see_inputs(x.data(), self.settings().width, batch);
}

auto choose_shared(BoundIndex& self, const ConstMatrix& x,
                   const std::optional<ConstIntegers>& label_offsets,
                   const std::optional<ConstLabels>& labels, const std::string& choice, Index limit,
                   Index floor, int votes, Index hardest, const std::optional<ConstRows>& weight,
                   const std::optional<ConstValues>& bias, std::uint64_t seed, int threads) {
  const Index batch = require_inputs(self, x);
  SamplingSettings settings = sampling_of(choice, limit, floor, votes);
  require(hardest >= 0, "The hardest are " + std::to_string(hardest) + "; expected 0 or more.");
  require(hardest == 0 || weight, "The weight is missing; expected it, to tell which are hardest.");
  settings.hardest = hardest;
  const LabelRows given = label_rows(self, label_offsets, labels, batch);
  require_threads(threads);
  OutputRows outputs{x.data(), self.settings().width, {}, nullptr};
  if (weight) {
    const WeightRows rows = weight_rows(self, *weight);
    outputs.weight.width = self.settings().width;
    outputs.weight.stride = rows.stride;
    outputs.weight.weight = const_cast<float*>(rows.first);  // read only
  }
  if (bias) {
    require(static_cast<Index>(bias->size()) == self.settings().neurons,
            "There are " + std::to_string(bias->size()) + " biases; expected " +
                std::to_string(self.settings().neurons) + ", one for each neuron.");
    outputs.bias = bias->data();
  }
  std::vector<std::int64_t> wide;
  {
    const nb::gil_scoped_release release;
    std::vector<std::int32_t> rows;
    self.with_team(threads, [&](Team& team) {
      self.choose_shared(outputs, batch, given, settings, seed, team, rows);
    });
    wide.assign(rows.begin(), rows.end());
  }
  const std::size_t count = wide.size();
  return give(std::move(wide), {count});
}

auto choose_each(BoundIndex& self, const ConstMatrix& x,
                 const std::optional<ConstIntegers>& label_offsets,
                 const std::optional<ConstLabels>& labels, const std::string& choice, Index limit,
                 Index floor, int votes, std::uint64_t seed, int threads) {
  const Index batch = require_inputs(self, x);
  const SamplingSettings settings = sampling_of(choice, limit, floor, votes);
  const LabelRows given = label_rows(self, label_offsets, labels, batch);
  require_threads(threads);
  const float* from = x.data();
  std::vector<std::int64_t> offsets, wide;
  {
    const nb::gil_scoped_release release;
    std::vector<std::int32_t> rows;
    self.with_team(threads, [&](Team& team) {
      self.choose_each(from, self.settings().width, batch, given, settings, seed, team, offsets,
                       rows);
    });
    wide.assign(rows.begin(), rows.end());
  }
  const std::size_t ends = offsets.size(), count = wide.size();
  return nb::make_tuple(give(std::move(offsets), {ends}), give(std::move(wide), {count}));
}

void mark_changed(BoundIndex& self, const ConstIntegers& rows) {
  require_numbers(rows, self.settings().neurons, "row number");
  const std::int64_t* numbers = rows.data();
  const auto count = static_cast<Index>(rows.size());
  const nb::gil_scoped_release release;
  self.mark_changed(numbers, count);
}

nb::dict occupancy(const BoundIndex& self) {
  const Occupancy seen = self.occupancy();
  nb::dict figures;
  figures["tables"] = self.settings().tables;
  figures["buckets"] = self.buckets();
  figures["slots"] = seen.slots;
  figures["held"] = seen.held;
  figures["dropped"] = seen.dropped;
  figures["empty_buckets"] = seen.empty;
  figures["full_buckets"] = seen.full;
  figures["largest_bucket"] = seen.largest;
  return figures;
}

}  // namespace

void bind_lsh(nb::module_& m) {
  nb::class_<BoundIndex>(m, "LshIndex")
      .def("__init__", &construct, "neurons"_a, "width"_a, nb::kw_only(), "family"_a = "dwta",
           "hashes"_a, "tables"_a, "bucket"_a, "bin"_a = 8, "density"_a = 1.0 / 3.0,
           "filling"_a = "fifo", "seed"_a = 0)
      .def("build", &build, nb::arg("weight").noconvert(), "threads"_a = 1)
      .def("refresh", &refresh, nb::arg("weight").noconvert(), "threads"_a = 1)
      .def("rebuild", &rebuild, nb::arg("weight").noconvert(), "seed"_a, "threads"_a = 1)
      .def("codes", &codes, nb::arg("x").noconvert())
      .def("codes_sparse", &codes_sparse, nb::arg("offsets").noconvert(),
           nb::arg("columns").noconvert(), nb::arg("values").noconvert().none())
      .def("choose_shared", &choose_shared, nb::arg("x").noconvert(),
           nb::arg("label_offsets").noconvert().none(), nb::arg("labels").noconvert().none(),
           nb::kw_only(), "choice"_a, "limit"_a, "floor"_a, "votes"_a, "hardest"_a = 0,
           nb::arg("weight").noconvert().none() = nb::none(),
           nb::arg("bias").noconvert().none() = nb::none(), "seed"_a, "threads"_a = 1)
      .def("see_inputs", &see_inputs, nb::arg("x").noconvert())
      .def("choose_each", &choose_each, nb::arg("x").noconvert(),
           nb::arg("label_offsets").noconvert().none(), nb::arg("labels").noconvert().none(),
           nb::kw_only(), "choice"_a, "limit"_a, "floor"_a, "votes"_a, "seed"_a, "threads"_a = 1)
      .def("mark_changed", &mark_changed, nb::arg("rows").noconvert())
      .def("occupancy", &occupancy)
      .def_prop_ro("built", [](const BoundIndex& self) { return self.built(); })
      .def_prop_ro("changed", [](const BoundIndex& self) { return self.changed(); })
      .def_prop_ro("memory_bytes", [](const BoundIndex& self) { return self.memory_bytes(); });
}

}  // namespace mh
