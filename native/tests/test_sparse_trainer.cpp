// The trainer of sparse layers with active neurons chosen by hand and by an index: odd sizes, exact
// arrays, and the same weights for any number of threads.
#include <algorithm>

#include "check.h"
#include "sparse/trainer.h"

namespace mh::test {
namespace {

constexpr Index kFeatures = 50, kHidden = 21, kSecond = 13, kNeurons = 1500, kSamples = 75;

struct Data {
  std::vector<std::int64_t> offsets{0}, label_offsets{0}, batch_offsets{0}, sample_offsets{0};
  std::vector<std::int32_t> columns, labels, batch_rows, sample_rows;
  Array values, dense;
};

void add_set(const Data& data, Index first, Index last, Random& random,
             std::vector<std::int64_t>& offsets, std::vector<std::int32_t>& rows) {
  std::vector<std::int32_t> set(data.labels.begin() + data.label_offsets[first],
                                data.labels.begin() + data.label_offsets[last]);
  for (int i = 0; i < 130; ++i) set.push_back(static_cast<std::int32_t>(random.next() % kNeurons));
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  rows.insert(rows.end(), set.begin(), set.end());
  offsets.push_back(static_cast<std::int64_t>(rows.size()));
}

Data make_data(Index batch) {
  Data data;
  Random random(3);
  for (Index i = 0; i < kSamples; ++i) {
    for (auto n = random.next() % 9; n > 0; --n) {
      data.columns.push_back(static_cast<std::int32_t>(random.next() % kFeatures));
    }
    for (auto n = random.next() % 4; n > 0; --n) {
      data.labels.push_back(static_cast<std::int32_t>(random.next() % kNeurons));
    }
    data.offsets.push_back(static_cast<std::int64_t>(data.columns.size()));
    data.label_offsets.push_back(static_cast<std::int64_t>(data.labels.size()));
  }
  data.values = random_array(static_cast<Index>(data.columns.size()), 4);
  data.dense = random_array(kSamples * kFeatures, 5);
  for (Index i = 0; i < kSamples; ++i) {
    add_set(data, i, i + 1, random, data.sample_offsets, data.sample_rows);
  }
  for (Index i = 0; i < kSamples; i += batch) {
    add_set(data, i, std::min(i + batch, kSamples), random, data.batch_offsets, data.batch_rows);
  }
  return data;
}

struct Case {
  Index batch;
  int threads;
  bool sparse;
  Sharing share;
  SparseLoss loss;
  bool by_index;
  bool narrow = false;
  double decay = 0.0;
  bool side_by_side = false;
};

// A parameter whose rows have their states behind them, in memory of its own.
class SideBySide {
 public:
  SideBySide(const Parameter& apart, Index width)
      : apart_(apart.states),
        rows_(apart.size / width),
        width_(width),
        stride_(width * static_cast<Index>(1 + apart.states.size())),
        memory_(static_cast<std::size_t>(rows_ * stride_)) {
    apart_.insert(apart_.begin(), apart.weight);
    each_row([](float* here, float* there) { *here = *there; });
  }
  Parameter parameter() {
    Parameter p;
    p.size = rows_ * width_;
    p.trained = true;
    p.weight = memory_.data();
    for (Index at = width_; at < stride_; at += width_) p.states.push_back(p.weight + at);
    return p;
  }
  Index stride() const { return stride_; }
  void write_back() {
    each_row([](const float* here, float* there) { *there = *here; });
  }

 private:
  template <typename Body>
  void each_row(const Body& body) {
    for (Index row = 0; row < rows_; ++row) {
      for (Index k = 0; k < stride_; ++k) {
        float* array = apart_[static_cast<std::size_t>(k / width_)];
        body(memory_.data() + row * stride_ + k, array + row * width_ + k % width_);
      }
    }
  }

  std::vector<float*> apart_;  // the weight, then its states
  Index rows_, width_, stride_;
  Array memory_;
};

// The weights of all layers after training twice over the data.
Array train(const Case& c, double* last) {
  RuleSettings settings;
  settings.weight_decay = c.decay;
  const Rule rule("adam", settings);
  Weights weights;
  SparseTrainer trainer(c.batch, c.threads);
  HiddenLayer first, second;
  first.sparse = c.sparse;
  first.in = kFeatures;
  first.out = second.in = kHidden;
  second.out = kSecond;
  first.weight = weights.parameter(kFeatures * kHidden, 2, 1, 0.3f);
  first.bias = weights.parameter(kHidden, 2, 2, 0.1f);
  second.weight = weights.parameter(kHidden * kSecond, 2, 3, 0.3f);
  second.bias = weights.parameter(kSecond, 2, 4, 0.1f);
  first.stride = kHidden;
  SideBySide features(first.weight, kHidden);
  if (c.side_by_side && c.sparse) {
    first.weight = features.parameter();
    first.stride = features.stride();
  }
  trainer.hidden(std::move(first));
  trainer.hidden(std::move(second));
  Parameter weight = weights.parameter(kNeurons * kSecond, 2, 5, 0.3f);
  SideBySide neurons(weight, kSecond);
  if (c.side_by_side) weight = neurons.parameter();
  const float* rows = weight.weight;
  const Index stride = c.side_by_side ? neurons.stride() : kSecond;
  trainer.output(kNeurons, kSecond, stride, std::move(weight),
                 weights.parameter(kNeurons, 2, 6, 0.1f));
  trainer.finish(rule, c.share, c.loss, false, c.narrow);
  LshIndex index({HashKind::kDwta, kNeurons, kSecond, 2, 6, 16, 4, 0.3, Filling::kFifo, 7});
  if (c.by_index) {
    Team team(1);
    index.build({rows, stride}, team);
    trainer.choose_by(&index, {Choice::kTopK, 90, 120, 1});
  }
  const Data data = make_data(c.batch);
  const auto batches = static_cast<std::size_t>((kSamples + c.batch - 1) / c.batch);
  const std::vector<double> rates(batches, 0.01);
  std::vector<double> losses(batches);
  SparsePiece piece;
  piece.count = kSamples;
  piece.batch_size = c.batch;
  piece.x = {data.offsets.data(), data.columns.data(), data.values.data()};
  if (!c.sparse) piece.dense = data.dense.data();
  piece.labels = {data.label_offsets.data(), data.labels.data()};
  if (!c.by_index) {
    const bool each = c.share == Sharing::kSample;
    piece.named = {(each ? data.sample_offsets : data.batch_offsets).data(),
                   (each ? data.sample_rows : data.batch_rows).data()};
  }
  piece.rates = rates.data();
  piece.losses = losses.data();
  for (int epoch = 0; epoch < 2; ++epoch) {
    const Index done = trainer.train(piece);
    check(done == static_cast<Index>(batches), "all batches of sparse training are done");
    piece.first_step += done;
  }
  trainer.catch_up();
  *last = losses.back();
  if (c.side_by_side) {
    neurons.write_back();
    if (c.sparse) features.write_back();
  }
  Array all;
  for (const auto& array : weights.arrays) all.insert(all.end(), array->begin(), array->end());
  return all;
}

void check_threads(Case c) {
  double first, last;
  c.threads = 1;
  const Array alone = train(c, &first);
  for (const int threads : {2, 3}) {
    c.threads = threads;
    check(train(c, &last) == alone && first == last,
          "sparse training is the same for any number of threads");
  }
}

void check_side_by_side(Case c) {
  double apart_loss, loss;
  const Array apart = train(c, &apart_loss);
  c.side_by_side = true;
  check(train(c, &loss) == apart && loss == apart_loss,
        "sparse training is the same with the states of a row behind it");
}

}  // namespace

void test_sparse_trainer() {
  for (const SparseLoss loss : {SparseLoss::kSoftmax, SparseLoss::kSigmoid}) {
    for (const Index batch : {1, 19, 75}) {
      check_threads({batch, 1, true, Sharing::kBatch, loss, false});
      double last;
      train({batch, 1, true, Sharing::kSample, loss, false}, &last);
      check(std::isfinite(last), "sparse training by samples stays finite");
    }
    for (const Sharing share : {Sharing::kBatch, Sharing::kSample}) {
      check_side_by_side({20, 1, true, share, loss, false});
      check_side_by_side({20, 1, true, share, loss, true});
      check_side_by_side({20, 1, false, share, loss, true});
      check_side_by_side({20, 1, true, share, loss, true, false, 0.1});
    }
    check_threads({20, 1, false, Sharing::kBatch, loss, false});
    check_threads({20, 1, true, Sharing::kBatch, loss, true});
    check_threads({20, 1, true, Sharing::kBatch, loss, true, true});
    check_threads({20, 1, true, Sharing::kBatch, loss, false, false, 0.1});
    check_threads({20, 1, true, Sharing::kBatch, loss, false, true, 0.1});
  }
}

// Threads that race on the weights on purpose.
void test_racing_samples() {
  for (const bool sparse : {true, false}) {
    for (const bool by_index : {true, false}) {
      double last;
      for (const bool narrow : {false, true}) {
        train({25, 3, sparse, Sharing::kSample, SparseLoss::kSoftmax, by_index, narrow}, &last);
        check(std::isfinite(last), "sparse training by racing samples stays finite");
        train({25, 3, sparse, Sharing::kSample, SparseLoss::kSoftmax, by_index, narrow, 0.1}, &last);
        check(std::isfinite(last), "and so it does with weights that decay");
      }
    }
  }
}

}  // namespace mh::test
