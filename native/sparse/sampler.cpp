#include "sparse/sampler.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "kernels/dispatch.h"
#include "random.h"
#include "sparse/mixing.h"

namespace mh {
namespace {

constexpr std::uint32_t kBlock = 512;  // neurons whose votes are looked at together: 1 KB
constexpr std::uint32_t kPart = 32;    // and those that are passed over together
constexpr std::uint32_t kMostVotes = 65535;
constexpr std::uint8_t kMostOfSample = 255;
constexpr Index kLeastNamed = 32, kNamedForOne = 8;  // found, for each of the hardest of a sample
constexpr Index kStateAhead = 32;  // buckets asked for before they are read: the state,
constexpr Index kAhead = 12;        // and the neurons that it speaks of

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
  return set_.bytes() + votes_.bytes();
}

void SampleChooser::choose(const HashedNeurons& state, const SampleCodes& codes, Index sample,
                           const std::int32_t* labels, Index label_count,
                           const SamplingSettings& settings, std::uint64_t seed,
                           std::vector<std::int32_t>& rows) {
  if (settings.limit > 0) {
    const Index tables = state.functions.tables();
    for (Index t = 0; t < tables; ++t) state.tables.prefetch(t, codes.at(t, sample));
    for (Index t = 0; t < tables; ++t) state.tables.prefetch_neurons(t, codes.at(t, sample));
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
  found_.resize(static_cast<std::size_t>(tables * state.tables.shape().bucket));
  std::int32_t* end = found_.data();
  for (Index table = 0; table < tables; ++table) {
    state.tables.each(table, codes.at(table, sample), [&](std::int32_t neuron) {
      std::uint8_t& votes = votes_[static_cast<std::size_t>(neuron)];
      *end = neuron;  // kept if it is new: no branch that nobody can predict
      end += votes == 0;
      votes = static_cast<std::uint8_t>(votes + (votes < kMostOfSample));
    });
  }
  found_.resize(static_cast<std::size_t>(end - found_.data()));
  having_.assign(kMostOfSample + 1, 0);
  for (const std::int32_t neuron : found_) ++having_[votes_[static_cast<std::size_t>(neuron)]];
  const Election election = hold_election(having_, settings.limit, least_votes(settings));
  EvenChoice ties(election.ties, election.tied, draw_for(seed, kTies));
  for (const std::int32_t neuron : found_) {
    std::uint8_t& votes = votes_[static_cast<std::size_t>(neuron)];
    if (votes > election.least || (votes == election.least && ties.takes_next())) set_.add(neuron);
    votes = 0;
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
  for (const auto& seeker : seekers_) sum += seeker->chooser.bytes();
  for (const Ballot& b : ballots_) {
    sum += b.votes.bytes() + b.counted.size() +
           b.hits.size() * sizeof(std::uint32_t) + b.candidates.capacity() * sizeof(Candidate);
  }
  return sum;
}

void BatchChooser::choose(const HashedNeurons& state, const SampleCodes& codes,
                          const OutputRows& outputs, LabelRows labels,
                          const SamplingSettings& settings, std::uint64_t seed, Team& team,
                          std::vector<std::int32_t>& rows) {
  if (settings.hardest > 0 && outputs.weight.weight) {
    add_hardest(state, codes, outputs, labels, settings, seed, team);
  }
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

// The tables name some neurons for each sample, and their outputs tell which are hard: wrong and
// large. Those of one sample are a handful, so that every sample has its own, whatever the others
// find.
void BatchChooser::add_hardest(const HashedNeurons& state, const SampleCodes& codes,
                               const OutputRows& outputs, LabelRows labels,
                               const SamplingSettings& settings, std::uint64_t seed, Team& team) {
  const int threads = team.size();
  while (seekers_.size() < static_cast<std::size_t>(threads)) {
    seekers_.push_back(std::make_unique<Seeker>(neurons_));
  }
  SamplingSettings named = settings;
  named.limit = std::max(kLeastNamed, kNamedForOne * settings.hardest);
  named.floor = 0;
  team.run([&](int thread) {
    Seeker& mine = *seekers_[static_cast<std::size_t>(thread)];
    const Share share = share_of(codes.samples, thread, threads);
    mine.hardest.clear();
    for (Index b = share.begin; b < share.end; ++b) {
      mine.found.clear();
      mine.chooser.choose(state, codes, b, nullptr, 0, named,
                          mixed(seed, static_cast<std::uint64_t>(b)), mine.found);
      const auto own = labels.offsets ? labels.offsets[b] : 0;
      const auto end = labels.offsets ? labels.offsets[b + 1] : 0;
      const auto right = [&](std::int32_t row) {
        return std::find(labels.labels + own, labels.labels + end, row) != labels.labels + end;
      };
      if (own < end) {
        mine.found.erase(std::remove_if(mine.found.begin(), mine.found.end(), right),
                         mine.found.end());
      }
      const auto count = static_cast<Index>(mine.found.size());
      mine.outputs.resize(mine.found.size());
      kernels().row_dots(outputs.weight, outputs.bias, mine.found.data(), count,
                         outputs.x + b * outputs.ld, mine.outputs.data());
      mine.order.resize(mine.found.size());
      std::iota(mine.order.begin(), mine.order.end(), 0);
      const Index kept = std::min(settings.hardest, count);
      std::partial_sort(mine.order.begin(), mine.order.begin() + kept, mine.order.end(),
                        [&](std::int32_t a, std::int32_t c) {
                          return mine.outputs[static_cast<std::size_t>(a)] >
                                 mine.outputs[static_cast<std::size_t>(c)];
                        });
      for (Index i = 0; i < kept; ++i) {
        const auto at = static_cast<std::size_t>(mine.order[static_cast<std::size_t>(i)]);
        mine.hardest.push_back(mine.found[at]);
      }
    }
  });
  for (int i = 0; i < threads; ++i) {
    for (const std::int32_t row : seekers_[static_cast<std::size_t>(i)]->hardest) set_.add(row);
  }
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
    if (mine.votes.size() == 0) {
      mine.votes = HugeArray<std::uint16_t>(static_cast<std::size_t>(blocks * kBlock));
    }
    mine.counted.resize(static_cast<std::size_t>(blocks));
    mine.hits.resize(static_cast<std::size_t>(state.functions.buckets()));
    for (Index table; (table = next.fetch_add(1, std::memory_order_relaxed)) < tables;) {
      count_table(state, codes, table, mine);
    }
  });
  team.run([&](int thread) {
    add_up(share_of(blocks, thread, threads), ballots_[static_cast<std::size_t>(thread)]);
  });

  const Index least = level_with(settings.limit, least_votes(settings), threads);
  team.run([&](int thread) {
    collect(share_of(blocks, thread, threads), least, ballots_[static_cast<std::size_t>(thread)]);
  });

  std::size_t most = 0;
  for (int i = 0; i < threads; ++i) {
    most = std::max(most, ballots_[static_cast<std::size_t>(i)].most);
  }
  std::vector<Index> having(most + 1);
  for (int i = 0; i < threads; ++i) {
    for (const Candidate& c : ballots_[static_cast<std::size_t>(i)].candidates) ++having[c.votes];
  }
  const Election election = hold_election(having, settings.limit, least);
  EvenChoice ties(election.ties, election.tied, draw_for(seed, kTies));
  for (int i = 0; i < threads; ++i) {
    for (const Candidate& c : ballots_[static_cast<std::size_t>(i)].candidates) {
      if (c.votes > election.least || (c.votes == election.least && ties.takes_next())) {
        set_.add(c.neuron);
      }
    }
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
  // Whether no neuron can have too many votes, even if it is seen twice while it moves.
  const bool safe = 2 * codes.samples * state.functions.tables() <= Index{kMostVotes};
  std::uint16_t* votes = mine.votes.data();
  std::uint8_t* counted = mine.counted.data();
  for (Index i = 0; i < count; ++i) {
    if (i + kStateAhead < count) {
      state.tables.prefetch(table, mine.buckets[static_cast<std::size_t>(i + kStateAhead)]);
    }
    if (i + kAhead < count) {
      state.tables.prefetch_neurons(table, mine.buckets[static_cast<std::size_t>(i + kAhead)]);
    }
    const std::uint16_t code = mine.buckets[static_cast<std::size_t>(i)];
    const std::uint32_t hits = std::min(mine.hits[code], kMostVotes);
    mine.hits[code] = 0;
    if (safe) {
      state.tables.each(table, code, [=](std::int32_t neuron) {
        const auto at = static_cast<std::uint32_t>(neuron);
        votes[at] = static_cast<std::uint16_t>(votes[at] + hits);
        counted[at / kBlock] = 1;
      });
    } else {
      state.tables.each(table, code, [=](std::int32_t neuron) {
        const auto at = static_cast<std::uint32_t>(neuron);
        votes[at] = static_cast<std::uint16_t>(std::min(votes[at] + hits, kMostVotes));
        counted[at / kBlock] = 1;
      });
    }
  }
}

// Sums the votes of all threads for a share of the neurons into the first ballot, clears the
// others, and counts how many neurons reach each level.
void BatchChooser::add_up(Share blocks, Ballot& mine) {
  std::fill(mine.having, mine.having + kLevels, 0);
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
    for (int level = 0; level < kLevels; ++level) {
      std::uint16_t reach = 0;
      for (Index i = 0; i < kBlock; ++i) {
        reach = static_cast<std::uint16_t>(reach + (total[i] >= (1u << level)));
      }
      if (reach == 0) break;
      mine.having[level] += reach;
    }
  }
}

// Nobody below this number of votes is elected: the highest level that enough neurons reach.
Index BatchChooser::level_with(Index limit, Index least, int threads) const {
  for (int level = kLevels - 1; level > 0; --level) {
    Index reach = 0;
    for (int i = 0; i < threads; ++i) reach += ballots_[static_cast<std::size_t>(i)].having[level];
    if (reach >= limit) return std::max(least, Index{1} << level);
  }
  return least;
}

// Takes the neurons with at least so many votes out of a share, and clears it.
void BatchChooser::collect(Share blocks, Index least, Ballot& mine) {
  mine.candidates.clear();
  mine.most = 0;
  Ballot& sum = ballots_.front();
  for (Index block = blocks.begin; block < blocks.end; ++block) {
    if (!sum.counted[static_cast<std::size_t>(block)]) continue;
    sum.counted[static_cast<std::size_t>(block)] = 0;
    for (Index first = block * kBlock; first < (block + 1) * kBlock; first += kPart) {
      std::uint16_t* votes = sum.votes.data() + first;
      std::uint16_t most = 0;
      for (Index i = 0; i < kPart; ++i) most = std::max(most, votes[i]);
      if (most >= least) {
        mine.most = std::max<std::size_t>(mine.most, most);
        for (Index i = 0; i < kPart; ++i) {
          if (votes[i] >= least) {
            mine.candidates.push_back({static_cast<std::int32_t>(first + i), votes[i]});
          }
        }
      }
      if (most > 0) std::fill(votes, votes + kPart, std::uint16_t{0});
    }
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
