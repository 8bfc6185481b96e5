#include "sparse/sampler.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "random.h"
#include "sparse/mixing.h"

namespace mh {
namespace {

constexpr Index kBlock = 64;  // neurons whose votes are looked at together: 128 bytes
constexpr std::uint32_t kMostVotes = 65535;
constexpr Index kAhead = 8;  // buckets asked for before they are read

enum Purpose : std::uint64_t { kTies = 1, kVisits = 2, kRandom = 3 };

std::uint64_t draw_for(std::uint64_t seed, Purpose purpose) { return mixed(seed, purpose); }

// Those with more than `least` votes are elected, of those with `least` only `ties`.
struct Election {
  Index least;
  Index ties, tied;
};

// having[v]: how many have v votes. Nobody below `votes` (at least 1) is elected.
Election hold_election(const std::vector<Index>& having, Index limit, Index votes) {
  Election election{static_cast<Index>(having.size()), 0, 0};
  Index elected = 0;
  for (Index v = static_cast<Index>(having.size()) - 1; v >= votes; --v) {
    election.least = v;
    election.tied = having[static_cast<std::size_t>(v)];
    election.ties = std::min(election.tied, limit - elected);
    elected += election.ties;
    if (elected == limit) break;
  }
  return election;
}

Index least_votes(const SamplingSettings& settings) {
  return settings.choice == Choice::kThreshold ? std::max(settings.votes, 1) : 1;
}

// Numbers 0 to n - 1 in random order.
void shuffle(std::vector<Index>& order, Index n, std::uint64_t seed) {
  order.resize(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), Index{0});
  Random random(seed);
  for (Index i = n - 1; i > 0; --i) {
    const auto other = below(random.next(), static_cast<std::uint64_t>(i) + 1);
    std::swap(order[static_cast<std::size_t>(i)], order[other]);
  }
}

}  // namespace

HashedNeurons::HashedNeurons(const HashSettings& hash, Index count, int bucket, Filling filling)
    : functions(hash),
      tables({functions.tables(), functions.buckets(), bucket, filling, mixed(hash.seed, 0)}),
      neurons(count),
      codes(static_cast<std::size_t>(functions.tables() * count)) {}

void fill_up(RowSet& rows, Index neurons, Index floor, std::uint64_t seed) {
  const Index wanted = std::min(floor, neurons);
  Random random(draw_for(seed, kRandom));
  while (rows.size() < wanted) {
    rows.add(static_cast<std::int32_t>(below(random.next(), static_cast<std::uint64_t>(neurons))));
  }
}

// --- one sample

SampleChooser::SampleChooser(Index neurons)
    : set_(neurons), votes_(static_cast<std::size_t>(neurons)) {}

std::size_t SampleChooser::bytes() const {
  return set_.bytes() + votes_.size() * sizeof(std::uint16_t);
}

void SampleChooser::choose(const HashedNeurons& state, const SampleCodes& codes, Index sample,
                           const std::int32_t* labels, Index label_count,
                           const SamplingSettings& settings, std::uint64_t seed,
                           std::vector<std::int32_t>& rows) {
  if (settings.limit > 0) {
    for (Index table = 0; table < state.functions.tables(); ++table) {
      state.tables.prefetch(table, codes.at(table, sample));
    }
    if (settings.choice == Choice::kVanilla) {
      by_visits(state, codes, sample, settings.limit, seed);
    } else {
      by_votes(state, codes, sample, settings, seed);
    }
  }
  for (Index i = 0; i < label_count; ++i) set_.add(labels[i]);
  fill_up(set_, state.neurons, settings.floor, seed);
  set_.drain(rows);
}

void SampleChooser::by_votes(const HashedNeurons& state, const SampleCodes& codes, Index sample,
                             const SamplingSettings& settings, std::uint64_t seed) {
  const Index tables = state.functions.tables();
  found_.clear();
  for (Index table = 0; table < tables; ++table) {
    state.tables.each(table, codes.at(table, sample), [this](std::int32_t neuron) {
      if (votes_[static_cast<std::size_t>(neuron)]++ == 0) found_.push_back(neuron);
    });
  }
  // A bucket that is being rewritten may show a neuron twice: then it has more votes than tables.
  having_.assign(static_cast<std::size_t>(tables) + 1, 0);
  const auto votes_of = [&](std::int32_t neuron) {
    return std::min<Index>(votes_[static_cast<std::size_t>(neuron)], tables);
  };
  for (const std::int32_t neuron : found_) ++having_[static_cast<std::size_t>(votes_of(neuron))];
  const Election election = hold_election(having_, settings.limit, least_votes(settings));
  const EvenChoice ties(election.ties, election.tied, draw_for(seed, kTies));
  Index tie = 0;
  for (const std::int32_t neuron : found_) {
    const Index votes = votes_of(neuron);
    if (votes > election.least || (votes == election.least && ties.takes(tie++))) set_.add(neuron);
    votes_[static_cast<std::size_t>(neuron)] = 0;
  }
}

void SampleChooser::by_visits(const HashedNeurons& state, const SampleCodes& codes, Index sample,
                              Index limit, std::uint64_t seed) {
  shuffle(order_, state.functions.tables(), draw_for(seed, kVisits));
  for (const Index table : order_) {
    state.tables.each(table, codes.at(table, sample), [&](std::int32_t neuron) {
      if (set_.size() < limit) set_.add(neuron);
    });
    if (set_.size() >= limit) return;
  }
}

// --- a batch

BatchChooser::BatchChooser(Index neurons) : neurons_(neurons), set_(neurons) {}

std::size_t BatchChooser::bytes() const {
  std::size_t sum = set_.bytes();
  for (const Ballot& b : ballots_) {
    sum += b.votes.size() * sizeof(std::uint16_t) + b.counted.size() +
           b.hits.size() * sizeof(std::uint32_t) + b.having.size() * sizeof(Index);
  }
  return sum;
}

void BatchChooser::choose(const HashedNeurons& state, const SampleCodes& codes, LabelRows labels,
                          const SamplingSettings& settings, std::uint64_t seed, Team& team,
                          std::vector<std::int32_t>& rows) {
  if (settings.limit > 0 && codes.samples > 0) {
    if (settings.choice == Choice::kVanilla) {
      by_visits(state, codes, settings.limit, seed);
    } else {
      by_votes(state, codes, settings, seed, team);
    }
  }
  if (labels.offsets) {
    for (std::int64_t i = labels.offsets[0]; i < labels.offsets[codes.samples]; ++i) {
      set_.add(labels.labels[i]);
    }
  }
  fill_up(set_, neurons_, settings.floor, seed);
  rows.clear();
  set_.drain(rows);
}

void BatchChooser::by_votes(const HashedNeurons& state, const SampleCodes& codes,
                            const SamplingSettings& settings, std::uint64_t seed, Team& team) {
  const int threads = team.size();
  const Index tables = state.functions.tables();
  const Index blocks = (neurons_ + kBlock - 1) / kBlock;
  ballots_.resize(std::max(ballots_.size(), static_cast<std::size_t>(threads)));
  std::atomic<Index> next{0};
  team.run([&](int thread) {
    Ballot& mine = ballots_[static_cast<std::size_t>(thread)];
    mine.votes.resize(static_cast<std::size_t>(blocks * kBlock));
    mine.counted.resize(static_cast<std::size_t>(blocks));
    mine.hits.resize(static_cast<std::size_t>(state.functions.buckets()));
    for (Index table; (table = next.fetch_add(1, std::memory_order_relaxed)) < tables;) {
      count_table(state, codes, table, mine);
    }
  });
  team.run([&](int thread) {
    add_up(share_of(blocks, thread, threads), ballots_[static_cast<std::size_t>(thread)]);
  });

  std::vector<Index> having;
  for (int i = 0; i < threads; ++i) {
    const std::vector<Index>& part = ballots_[static_cast<std::size_t>(i)].having;
    having.resize(std::max(having.size(), part.size()));
    for (std::size_t v = 0; v < part.size(); ++v) having[v] += part[v];
  }
  const Election election = hold_election(having, settings.limit, least_votes(settings));
  const EvenChoice ties(election.ties, election.tied, draw_for(seed, kTies));
  const auto least = static_cast<std::size_t>(election.least);
  std::vector<Index> first_tie(static_cast<std::size_t>(threads) + 1);
  for (std::size_t i = 0; i + 1 < first_tie.size(); ++i) {
    const std::vector<Index>& part = ballots_[i].having;
    first_tie[i + 1] = first_tie[i] + (least < part.size() ? part[least] : 0);
  }
  team.run([&](int thread) {
    const auto at = static_cast<std::size_t>(thread);
    elect(share_of(blocks, thread, threads), election.least, ties, first_tie[at], ballots_[at]);
  });
  for (int i = 0; i < threads; ++i) {
    for (const std::int32_t row : ballots_[static_cast<std::size_t>(i)].chosen) set_.add(row);
  }
}

// Samples of a batch resemble each other: a bucket that many fall into is read once.
void BatchChooser::count_table(const HashedNeurons& state, const SampleCodes& codes, Index table,
                               Ballot& mine) {
  mine.buckets.clear();
  for (Index sample = 0; sample < codes.samples; ++sample) {
    const std::uint16_t code = codes.at(table, sample);
    if (mine.hits[code]++ == 0) mine.buckets.push_back(code);
  }
  const auto count = static_cast<Index>(mine.buckets.size());
  std::uint16_t* votes = mine.votes.data();
  std::uint8_t* counted = mine.counted.data();
  for (Index i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      state.tables.prefetch(table, mine.buckets[static_cast<std::size_t>(i + kAhead)]);
    }
    const std::uint16_t code = mine.buckets[static_cast<std::size_t>(i)];
    const std::uint32_t hits = std::min(mine.hits[code], kMostVotes);
    mine.hits[code] = 0;
    state.tables.each(table, code, [=](std::int32_t neuron) {
      votes[neuron] = static_cast<std::uint16_t>(std::min(votes[neuron] + hits, kMostVotes));
      counted[neuron / kBlock] = 1;
    });
  }
}

// Sums the votes of all threads for a share of the neurons into the first ballot, clears the
// others, and counts how many neurons have each number of votes.
void BatchChooser::add_up(Share blocks, Ballot& mine) {
  mine.having.clear();
  Ballot& sum = ballots_.front();
  for (Index block = blocks.begin; block < blocks.end; ++block) {
    const auto at = static_cast<std::size_t>(block);
    std::uint16_t* total = sum.votes.data() + block * kBlock;
    for (std::size_t other = 1; other < ballots_.size(); ++other) {
      Ballot& ballot = ballots_[other];
      if (ballot.counted.empty() || !ballot.counted[at]) continue;
      std::uint16_t* part = ballot.votes.data() + block * kBlock;
      for (Index i = 0; i < kBlock; ++i) {
        total[i] = static_cast<std::uint16_t>(
            std::min<std::uint32_t>(std::uint32_t{total[i]} + part[i], kMostVotes));
        part[i] = 0;
      }
      ballot.counted[at] = 0;
      sum.counted[at] = 1;
    }
    if (!sum.counted[at]) continue;
    for (Index i = 0; i < kBlock; ++i) {
      if (total[i] == 0) continue;
      if (total[i] >= mine.having.size()) mine.having.resize(std::size_t{total[i]} + 1);
      ++mine.having[total[i]];
    }
  }
}

void BatchChooser::elect(Share blocks, Index least, const EvenChoice& ties, Index first_tie,
                         Ballot& mine) {
  mine.chosen.clear();
  Ballot& sum = ballots_.front();
  for (Index block = blocks.begin; block < blocks.end; ++block) {
    if (!sum.counted[static_cast<std::size_t>(block)]) continue;
    std::uint16_t* total = sum.votes.data() + block * kBlock;
    for (Index i = 0; i < kBlock; ++i) {
      if (total[i] >= least && (total[i] > least || ties.takes(first_tie++))) {
        mine.chosen.push_back(static_cast<std::int32_t>(block * kBlock + i));
      }
      total[i] = 0;
    }
    sum.counted[static_cast<std::size_t>(block)] = 0;
  }
}

void BatchChooser::by_visits(const HashedNeurons& state, const SampleCodes& codes, Index limit,
                             std::uint64_t seed) {
  std::vector<Index> order;
  shuffle(order, state.functions.tables(), draw_for(seed, kVisits));
  // Each table begins with another sample, so that none is served first everywhere.
  Random random(draw_for(seed, kVisits) + 1);
  for (const Index table : order) {
    const auto first = static_cast<Index>(
        below(random.next(), static_cast<std::uint64_t>(codes.samples)));
    for (Index i = 0; i < codes.samples; ++i) {
      const Index sample = (first + i) % codes.samples;
      state.tables.each(table, codes.at(table, sample), [&](std::int32_t neuron) {
        if (set_.size() < limit) set_.add(neuron);
      });
      if (set_.size() >= limit) return;
    }
  }
}

}  // namespace mh
