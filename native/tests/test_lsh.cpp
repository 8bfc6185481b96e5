// The index of a wide layer: its kernels on odd sizes, threads that choose beside one that moves
// neurons, and the team that they run on.
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

#include "check.h"
#include "sparse/lsh_index.h"

namespace mh::test {
namespace {

constexpr HashKind kKinds[] = {HashKind::kSimHash, HashKind::kWta, HashKind::kDwta,
                               HashKind::kMinHash};
using Rows = std::vector<std::int32_t>;

IndexSettings settings_of(HashKind kind, Index neurons, Index width, Filling filling) {
  return {kind, neurons, width, 3, 5, 6, 8, 0.4, filling, 11};
}

Array odd_weights(Index neurons, Index width) {
  Array weight = random_array(neurons * width, 3);
  for (std::size_t i = 0; i < weight.size(); i += 7) weight[i] = 0.0f;
  if (neurons > 4) weight[static_cast<std::size_t>(4 * width)] = std::nanf("");
  return weight;
}

void test_team(int threads) {
  Team team(threads);
  check(team.size() == threads, "a team has the size asked for");
  std::vector<int> ran(static_cast<std::size_t>(threads));
  for (int round = 1; round <= 200; ++round) {
    team.run([&](int thread) { ++ran[static_cast<std::size_t>(thread)]; });
    for (const int times : ran) check(times == round, "every thread runs in every round");
    // Now and then long enough for the others to fall asleep.
    if (round % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  bool thrown = false;
  try {
    team.run([&](int thread) {
      if (thread == team.size() - 1) throw std::runtime_error("on purpose");
    });
  } catch (const std::runtime_error&) {
    thrown = true;
  }
  check(thrown, "an exception reaches the caller");
  team.run([&](int thread) { ++ran[static_cast<std::size_t>(thread)]; });
  check(ran.back() == 201, "a team survives an exception");
}

void test_shares() {
  for (const Index n : {0, 1, 5, 17}) {
    Index next = 0;
    for (int thread = 0; thread < 4; ++thread) {
      const Share share = share_of(n, thread, 4);
      check(share.begin == next && share.end >= share.begin, "shares follow each other");
      next = share.end;
    }
    check(next == n, "shares are everything");
  }
}

void test_choosing(HashKind kind, Index neurons, Index width) {
  const Array weight = odd_weights(neurons, width);
  const Index batch = 37;
  const Array x = random_array(batch * width, 5);
  std::vector<std::int64_t> label_offsets(static_cast<std::size_t>(batch) + 1);
  Rows labels;
  for (Index b = 0; b < batch; ++b) {
    if (b % 3) labels.push_back(static_cast<std::int32_t>(b % neurons));
    label_offsets[static_cast<std::size_t>(b) + 1] = static_cast<std::int64_t>(labels.size());
  }
  for (const Choice choice : {Choice::kVanilla, Choice::kTopK, Choice::kThreshold}) {
    const SamplingSettings sampling{choice, 9, 12, 2};
    Rows rows[3], together[3], one;
    std::vector<std::int64_t> offsets;
    for (int threads = 1; threads <= 3; ++threads) {
      Team team(threads);
      LshIndex index(settings_of(kind, neurons, width, Filling::kReservoir));
      index.build({weight.data(), width}, team);
      index.see_inputs(x.data(), width, batch);
      const LabelRows given{label_offsets.data(), labels.data()};
      index.choose_shared({x.data(), width, {}, nullptr}, batch, given, sampling, 1, team, together[threads - 1]);
      index.choose_each(x.data(), width, batch, given, sampling, 1, team, offsets,
                        rows[threads - 1]);
      LshIndex::Search search(index);
      for (const Index b : {Index{0}, batch - 1}) {
        const auto at = static_cast<std::size_t>(b);
        search.one(x.data() + b * width, labels.data() + label_offsets[at],
                   label_offsets[at + 1] - label_offsets[at], sampling,
                   LshIndex::sample_seed(1, b), one);
        const auto first = rows[threads - 1].begin();
        check(one == Rows(first + offsets[at], first + offsets[at + 1]), "one sample is as many");
      }
    }
    check(together[0] == together[1] && together[0] == together[2], "any team, the same set");
    check(rows[0] == rows[1] && rows[0] == rows[2], "any team, the same sets");
  }
}

void test_codes(HashKind kind, Index width) {
  const Array x = odd_weights(40, width);
  LshIndex index(settings_of(kind, 40, width, Filling::kFifo));
  std::vector<std::uint32_t> codes(200), sparse(200);
  index.codes(x.data(), width, 40, codes.data());
  std::vector<std::int64_t> offsets{0};
  Rows columns;
  Array values;
  for (Index i = 0; i < 40; ++i) {
    for (Index j = 0; j < width; ++j) {
      const float value = x[static_cast<std::size_t>(i * width + j)];
      if (value == 0.0f) continue;
      columns.push_back(static_cast<std::int32_t>(j));
      values.push_back(value);
    }
    offsets.push_back(static_cast<std::int64_t>(columns.size()));
  }
  index.codes_sparse(offsets.data(), columns.data(), values.data(), 40, sparse.data());
  check(codes == sparse, "a sparse row hashes as the row written out");
}

// One thread moves neurons and draws functions while others choose.
void test_changing_beside(HashKind kind) {
  constexpr Index kNeurons = 300, kWidth = 21, kBatch = 20;
  const Array weights[2] = {random_array(kNeurons * kWidth, 1), random_array(kNeurons * kWidth, 2)};
  const Array x = random_array(kBatch * kWidth, 3);
  LshIndex index(settings_of(kind, kNeurons, kWidth, Filling::kFifo));
  Team first(2);
  index.build({weights[0].data(), kWidth}, first);
  std::atomic<bool> done{false};
  std::thread changing([&] {
    Team team(2);
    for (int round = 0; round < 20; ++round) {
      Rows rows;
      for (std::int32_t n = round % 3; n < kNeurons; n += 3) rows.push_back(n);
      index.mark_changed(rows.data(), static_cast<Index>(rows.size()));
      index.refresh({weights[round % 2].data(), kWidth}, team);
      if (round % 7 == 0) {
        index.rebuild({weights[0].data(), kWidth}, static_cast<std::uint64_t>(round), team);
      }
    }
    done = true;
  });
  std::thread marking([&] {
    const std::int32_t rows[] = {1, 5, 299};
    while (!done) index.mark_changed(rows, 3);
  });
  const SamplingSettings sampling{Choice::kTopK, 30, 40, 1};
  Rows rows;
  std::vector<std::int64_t> offsets;
  for (std::uint64_t round = 0; !done || round < 3; ++round) {
    index.choose_shared({x.data(), kWidth, {}, nullptr}, kBatch, {nullptr, nullptr}, sampling, round, first, rows);
    check(rows.size() == 40 && rows.front() >= 0 && rows.back() < kNeurons, "rows are neurons");
    index.choose_each(x.data(), kWidth, kBatch, {nullptr, nullptr}, sampling, round, first, offsets,
                      rows);
    check(offsets.back() == kBatch * 40, "sets have their floor");
  }
  changing.join();
  marking.join();
  const Occupancy seen = index.occupancy();
  check(seen.held + seen.dropped == kNeurons * 5, "every neuron has its place in every table");
}

}  // namespace

void test_lsh() {
  for (const int threads : {1, 2, 5}) test_team(threads);
  test_shares();
  for (const HashKind kind : kKinds) {
    for (const Index width : {1, 2, 7, 16, 33, 130}) {
      test_codes(kind, width);
      for (const Index neurons : {1, 3, 70}) test_choosing(kind, neurons, width);
    }
    test_changing_beside(kind);
  }
}

// Refreshing reads weights that training changes meanwhile, on purpose: a neuron that is hashed
// half old, half new has been marked, and is hashed again.
void test_lsh_shared(const KernelTable& table) {
  constexpr Index kNeurons = 200, kWidth = 19;
  Array weight = random_array(kNeurons * kWidth, 1);
  const Array grad = random_array(kWidth, 2);
  LshIndex index(settings_of(HashKind::kDwta, kNeurons, kWidth, Filling::kFifo));
  Team team(2);
  index.build({weight.data(), kWidth}, team);
  std::atomic<bool> done{false};
  std::thread training([&] {
    const RuleStep step = at_step(Rule("sgd", RuleSettings{}), 0.1, 1, 1.0);
    for (std::int32_t i = 0; !done; i = (i + 7) % kNeurons) {
      table.update(step, kWidth, weight.data() + i * kWidth, grad.data(), nullptr, nullptr);
      index.mark_changed(&i, 1);
    }
  });
  for (int round = 0; round < 100; ++round) index.refresh({weight.data(), kWidth}, team);
  done = true;
  training.join();
  index.refresh({weight.data(), kWidth}, team);
  LshIndex anew(settings_of(HashKind::kDwta, kNeurons, kWidth, Filling::kFifo));
  anew.build({weight.data(), kWidth}, team);
  check(index.occupancy().empty == anew.occupancy().empty &&
            index.occupancy().largest == anew.occupancy().largest,
        "the last refresh sees every change");
}

}  // namespace mh::test
