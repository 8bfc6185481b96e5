#include "sparse/lsh_index.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "sparse/mixing.h"

namespace mh {
namespace {

// Slots of a table: so many for each neuron, and in all tables together never fewer than the
// second, so that few neurons in many buckets are told apart as well as their codes allow.
constexpr Index kSlotsPerNeuron = 4;
constexpr Index kLeastSlots = Index{1} << 23;

constexpr int kMostBucketBits = 16;  // a code has 16 bits
constexpr Index kRemembered = 4096;  // samples that the mean of the inputs goes back
constexpr Index kChunk = 8192;       // neurons that are hashed before they are moved
constexpr Index kTried = 2048;       // neurons that tell how many will move
// A neuron that moves takes as long as so many that a table is filled with.
constexpr Index kMoveCost = 8;
constexpr Index kBucketAhead = 24;  // moves ahead of which a bucket is asked for,
constexpr Index kSlotsAhead = 8;    // and its slots

void require(bool condition, const char* what, const std::string& value, const char* expected) {
  if (condition) return;
  throw std::invalid_argument(std::string("The index's ") + what + " is " + value + "; expected " +
                              expected + ".");
}

void check(const IndexSettings& s) {
  constexpr Index kMost = std::numeric_limits<std::int32_t>::max();
  require(s.neurons >= 1 && s.neurons < kMost, "number of neurons", std::to_string(s.neurons),
          "1 to 2147483646");
  require(s.width >= 1 && s.width < (Index{1} << 26), "width", std::to_string(s.width),
          "1 to 67108863");
  require(s.hashes >= 1 && s.hashes <= 32, "number of hashes", std::to_string(s.hashes), "1 to 32");
  require(s.tables >= 1 && s.tables <= 4096, "number of tables", std::to_string(s.tables),
          "1 to 4096");
  require(s.bucket >= 1 && s.bucket <= 32768, "bucket size", std::to_string(s.bucket),
          "1 to 32768");
  if (s.kind != HashKind::kSimHash) {
    require(s.bin >= 2 && s.bin <= kMostInBin, "bin", std::to_string(s.bin), "2 to 64");
  }
  if (s.kind == HashKind::kSimHash || s.kind == HashKind::kMinHash) {
    require(s.density > 0.0 && s.density <= 1.0, "density", std::to_string(s.density),
            "a number above 0 and up to 1");
  }
}

int bucket_bits_for(const IndexSettings& s) {
  const Index slots = std::max(s.neurons * kSlotsPerNeuron, kLeastSlots / s.tables);
  int bits = 0;
  while (bits < kMostBucketBits && (Index{2} << bits) * s.bucket <= slots) ++bits;
  return bits;
}

std::vector<float> mean_row(const float* rows, Index ld, Index count, Index width) {
  std::vector<double> sum(static_cast<std::size_t>(width));
  for (Index i = 0; i < count; ++i) {
    for (Index k = 0; k < width; ++k) sum[static_cast<std::size_t>(k)] += rows[i * ld + k];
  }
  std::vector<float> mean(sum.size());
  for (std::size_t k = 0; k < sum.size(); ++k) {
    mean[k] = static_cast<float>(sum[k] / static_cast<double>(count));
  }
  return mean;
}

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

std::vector<const float*> rows_of(const float* x, Index ld, Index count) {
  std::vector<const float*> rows(static_cast<std::size_t>(count));
  for (Index i = 0; i < count; ++i) rows[static_cast<std::size_t>(i)] = x + i * ld;
  return rows;
}

template <typename T, typename Make>
std::unique_ptr<T> take_spare(std::mutex& mutex, std::vector<std::unique_ptr<T>>& spare,
                              const Make& make) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!spare.empty()) {
      std::unique_ptr<T> taken = std::move(spare.back());
      spare.pop_back();
      return taken;
    }
  }
  return make();
}

template <typename T>
void give_back(std::mutex& mutex, std::vector<std::unique_ptr<T>>& spare, std::unique_ptr<T> one) {
  const std::lock_guard<std::mutex> lock(mutex);
  spare.push_back(std::move(one));
}

}  // namespace

LshIndex::LshIndex(const IndexSettings& settings)
    : settings_(settings), functions_seed_(settings.seed) {
  check(settings);
  const int joined = joined_bits(hash_settings(0));
  require(joined <= 32, "code", std::to_string(joined) + " bits long",
          "at most 32 bits: fewer hashes or a smaller bin");
  bucket_bits_ = std::min(joined, bucket_bits_for(settings));
  marks_ = std::make_unique<std::uint8_t[]>(static_cast<std::size_t>(settings.neurons));
}

LshIndex::~LshIndex() = default;

HashSettings LshIndex::hash_settings(std::uint64_t seed) const {
  return {settings_.kind,    settings_.width, settings_.hashes, settings_.tables, settings_.bin,
          settings_.density, bucket_bits_,    seed};
}

LshIndex::State LshIndex::current() const {
  const std::lock_guard<std::mutex> lock(current_mutex_);
  return current_;
}

LshIndex::State LshIndex::required() const {
  State state = current();
  if (!state) {
    throw std::invalid_argument(
        "The index holds no neurons yet; call build with the weight first.");
  }
  return state;
}

// --- filling

void LshIndex::build(const WeightRows& weight, Team& team) {
  const std::lock_guard<std::mutex> lock(change_);
  make_tables(weight, functions_seed_, team);
}

void LshIndex::rebuild(const WeightRows& weight, std::uint64_t seed, Team& team) {
  const std::lock_guard<std::mutex> lock(change_);
  make_tables(weight, seed, team);
  functions_seed_ = seed;
}

void LshIndex::make_tables(const WeightRows& weight, std::uint64_t seed, Team& team) {
  (void)take_marked();  // before the weights are read: what changes later is marked again
  auto made = std::make_shared<HashedNeurons>(hash_settings(seed), settings_.neurons,
                                              settings_.bucket, settings_.filling);
  fill_tables(*made, weight, team);
  const std::lock_guard<std::mutex> lock(current_mutex_);
  current_.swap(made);
}

void LshIndex::fill_tables(HashedNeurons& state, const WeightRows& weight, Team& team) {
  const Index neurons = settings_.neurons;
  const Index blocks = (neurons + kHashBlock - 1) / kHashBlock;
  if (state.functions.centred() && neurons > 1) {
    state.centre = mean_row(weight.first, weight.stride, neurons, settings_.width);
    if (!all_finite(state.centre)) state.centre.clear();
  }
  team.run([&](int thread) {
    HashFunctions::Scratch scratch(state.functions);
    const Share mine = share_of(blocks, thread, team.size());
    for (Index block = mine.begin; block < mine.end; ++block) {
      const Index first = block * kHashBlock;
      const Index count = std::min<Index>(kHashBlock, neurons - first);
      const float* rows[kHashBlock];
      for (Index i = 0; i < count; ++i) rows[i] = weight.row(first + i);
      state.functions.hash(rows, count, scratch, state.seen_from(), state.codes.data() + first,
                           neurons);
    }
  });
  std::atomic<Index> next{0};
  team.run([&](int) {
    for (Index table; (table = next.fetch_add(1, std::memory_order_relaxed)) < settings_.tables;) {
      state.tables.fill(table, state.codes.data() + table * neurons, neurons);
    }
  });
}

void LshIndex::mark_changed(const std::int32_t* rows, Index n) {
  for (Index i = 0; i < n; ++i) __atomic_store_n(&marks_[rows[i]], 1, __ATOMIC_RELEASE);
}

void LshIndex::mark_changed(const std::int64_t* rows, Index n) {
  for (Index i = 0; i < n; ++i) __atomic_store_n(&marks_[rows[i]], 1, __ATOMIC_RELEASE);
}

Index LshIndex::changed() const {
  Index count = 0;
  for (Index i = 0; i < settings_.neurons; ++i) {
    count += __atomic_load_n(&marks_[i], __ATOMIC_RELAXED);
  }
  return count;
}

std::vector<std::int32_t> LshIndex::take_marked() {
  std::vector<std::int32_t> rows;
  for (Index i = 0; i < settings_.neurons; ++i) {
    // Who takes a mark reads what was written before it was set.
    if (!__atomic_load_n(&marks_[i], __ATOMIC_ACQUIRE)) continue;
    __atomic_store_n(&marks_[i], 0, __ATOMIC_RELAXED);
    rows.push_back(static_cast<std::int32_t>(i));
  }
  return rows;
}

Index LshIndex::refresh(const WeightRows& weight, Team& team) {
  const std::lock_guard<std::mutex> lock(change_);
  const State state = required();
  const std::vector<std::int32_t> rows = take_marked();
  if (kMoveCost * neurons_to_move(*state, rows, weight) > settings_.neurons) {
    fill_tables(*state, weight, team);
  } else {
    move_neurons(*state, rows, weight, team);
  }
  return static_cast<Index>(rows.size());
}

// How many of these neurons move in a table, by what some of them do.
Index LshIndex::neurons_to_move(const HashedNeurons& state, const std::vector<std::int32_t>& rows,
                                const WeightRows& weight) const {
  const auto marked = static_cast<Index>(rows.size());
  if (kMoveCost * marked <= settings_.neurons) return marked;
  const Index tables = settings_.tables, tried = std::min(kTried, marked);
  std::vector<std::int32_t> some;
  std::vector<const float*> places;
  for (Index i = 0; i < tried; ++i) {
    some.push_back(rows[static_cast<std::size_t>(i * marked / tried)]);
    places.push_back(weight.row(some.back()));
  }
  HashFunctions::Scratch scratch(state.functions);
  std::vector<std::uint16_t> fresh(static_cast<std::size_t>(tables * tried));
  state.functions.hash(places.data(), tried, scratch, state.seen_from(), fresh.data(), tried);
  Index moved = 0;
  for (Index table = 0; table < tables; ++table) {
    const std::uint16_t* held = state.codes.data() + table * settings_.neurons;
    const std::uint16_t* now = fresh.data() + table * tried;
    for (Index i = 0; i < tried; ++i) moved += held[some[static_cast<std::size_t>(i)]] != now[i];
  }
  return moved * marked / (tables * tried);
}

void LshIndex::move_neurons(HashedNeurons& state, const std::vector<std::int32_t>& rows,
                            const WeightRows& weight, Team& team) {
  const auto count = static_cast<Index>(rows.size());
  const Index tables = settings_.tables, stride = std::min(kChunk, count);
  std::vector<const float*> places(static_cast<std::size_t>(count));
  for (Index i = 0; i < count; ++i) {
    places[static_cast<std::size_t>(i)] = weight.row(rows[static_cast<std::size_t>(i)]);
  }
  std::vector<std::uint16_t> fresh(static_cast<std::size_t>(tables * stride));
  for (Index first = 0; first < count; first += kChunk) {
    const Index chunk = std::min(kChunk, count - first);
    team.run([&](int thread) {
      HashFunctions::Scratch scratch(state.functions);
      const Share mine = share_of(chunk, thread, team.size());
      state.functions.hash(places.data() + first + mine.begin, mine.end - mine.begin, scratch,
                           state.seen_from(), fresh.data() + mine.begin, stride);
    });
    team.run([&](int thread) {
      const Share mine = share_of(tables, thread, team.size());
      for (Index table = mine.begin; table < mine.end; ++table) {
        move_in_table(state, table, rows.data() + first, chunk, fresh.data() + table * stride);
      }
    });
  }
}

// Neurons [count] have these codes now.
void LshIndex::move_in_table(HashedNeurons& state, Index table, const std::int32_t* neurons,
                             Index count, const std::uint16_t* codes) const {
  std::uint16_t* held = state.codes.data() + table * settings_.neurons;
  std::int32_t moving[kChunk];
  Index moves = 0;
  for (Index i = 0; i < count; ++i) {
    moving[moves] = static_cast<std::int32_t>(i);  // kept if it moves: no branch
    moves += held[neurons[i]] != codes[i];
  }
  for (Index i = 0; i < moves; ++i) {
    if (i + kBucketAhead < moves) {
      const std::int32_t soon = moving[i + kBucketAhead];
      state.tables.prefetch(table, held[neurons[soon]]);
      state.tables.prefetch(table, codes[soon]);
    }
    if (i + kSlotsAhead < moves) {
      state.tables.prefetch_neurons(table, held[neurons[moving[i + kSlotsAhead]]]);
    }
    const std::int32_t neuron = neurons[moving[i]];
    state.tables.remove(table, held[neuron], neuron);
    held[neuron] = codes[moving[i]];
    state.tables.insert(table, held[neuron], neuron);
  }
}

// --- choosing

void LshIndex::see_inputs(const float* x, Index ld, Index batch) {
  if (settings_.kind != HashKind::kSimHash || batch == 0) return;
  const std::vector<float> mean = mean_row(x, ld, batch, settings_.width);
  if (!all_finite(mean)) return;  // a batch that training refuses as well
  const std::lock_guard<std::mutex> lock(inputs_mutex_);
  inputs_mean_.resize(mean.size());
  inputs_seen_ = std::min(inputs_seen_ + batch, std::max(kRemembered, batch));
  const float part = static_cast<float>(batch) / static_cast<float>(inputs_seen_);
  for (std::size_t k = 0; k < mean.size(); ++k) {
    inputs_mean_[k] += part * (mean[k] - inputs_mean_[k]);
  }
}

std::vector<float> LshIndex::input_centre(const float* x, Index ld, Index batch) const {
  {
    const std::lock_guard<std::mutex> lock(inputs_mutex_);
    if (!inputs_mean_.empty()) return inputs_mean_;
  }
  if (batch > 1) return mean_row(x, ld, batch, settings_.width);
  return std::vector<float>(static_cast<std::size_t>(settings_.width));
}

std::vector<std::uint16_t> LshIndex::hash_batch(const HashedNeurons& state, const float* x,
                                                Index ld, Index batch, Team& team) const {
  std::vector<std::uint16_t> codes(static_cast<std::size_t>(settings_.tables * batch));
  const std::vector<const float*> rows = rows_of(x, ld, batch);
  const Index blocks = (batch + kHashBlock - 1) / kHashBlock;
  std::vector<float> centre;
  if (state.functions.centred()) centre = input_centre(x, ld, batch);
  team.run([&](int thread) {
    const Share mine = share_of(blocks, thread, team.size());
    const Index first = mine.begin * kHashBlock;
    const Index count = std::min(mine.end * kHashBlock, batch) - first;
    if (count <= 0) return;
    HashFunctions::Scratch scratch(state.functions);
    state.functions.hash(rows.data() + first, count, scratch, centre.data(),
                         codes.data() + first, batch);
  });
  return codes;
}

void LshIndex::choose_shared(const OutputRows& outputs, Index batch, LabelRows labels,
                             const SamplingSettings& settings, std::uint64_t seed, Team& team,
                             std::vector<std::int32_t>& rows) const {
  const State state = required();
  const std::vector<std::uint16_t> codes = hash_batch(*state, outputs.x, outputs.ld, batch, team);
  auto chooser = take_spare(spare_mutex_, spare_choosers_,
                            [this] { return std::make_unique<BatchChooser>(settings_.neurons); });
  chooser->choose(*state, {codes.data(), batch, batch}, outputs, labels, settings, seed, team,
                  rows);
  give_back(spare_mutex_, spare_choosers_, std::move(chooser));
}

struct LshIndex::Search::Parts {
  explicit Parts(const LshIndex& owner) : index(owner), chooser(owner.settings_.neurons) {}

  const LshIndex& index;
  SampleChooser chooser;
  State state;  // whose functions the scratch is for
  std::unique_ptr<HashFunctions::Scratch> scratch;
  std::vector<std::uint16_t> codes;

  void look_at(State now) {
    if (now == state) return;
    state = std::move(now);
    scratch = std::make_unique<HashFunctions::Scratch>(state->functions);
    codes.resize(static_cast<std::size_t>(state->functions.tables()));
  }
};

std::uint64_t LshIndex::sample_seed(std::uint64_t seed, Index sample) {
  return mixed(seed, static_cast<std::uint64_t>(sample));
}

LshIndex::Search::Search(const LshIndex& index) : parts_(std::make_unique<Parts>(index)) {}
LshIndex::Search::~Search() = default;
LshIndex::Search::Search(Search&&) noexcept = default;

void LshIndex::Search::one(const float* x, const std::int32_t* labels, Index label_count,
                           const SamplingSettings& settings, std::uint64_t seed,
                           std::vector<std::int32_t>& rows) {
  Parts& p = *parts_;
  p.look_at(p.index.required());
  std::vector<float> centre;
  if (p.state->functions.centred()) centre = p.index.input_centre(&x[0], 0, 1);
  p.state->functions.hash(&x, 1, *p.scratch, centre.data(), p.codes.data(), 1);
  rows.clear();
  p.chooser.choose(*p.state, {p.codes.data(), 1, 1}, 0, labels, label_count, settings, seed, rows);
}

void LshIndex::choose_each(const float* x, Index ld, Index batch, LabelRows labels,
                           const SamplingSettings& settings, std::uint64_t seed, Team& team,
                           std::vector<std::int64_t>& offsets,
                           std::vector<std::int32_t>& rows) const {
  const State state = required();
  const std::vector<std::uint16_t> codes = hash_batch(*state, x, ld, batch, team);
  const SampleCodes samples{codes.data(), batch, batch};
  std::vector<std::vector<std::int32_t>> parts(static_cast<std::size_t>(team.size()));
  offsets.assign(static_cast<std::size_t>(batch) + 1, 0);
  team.run([&](int thread) {
    const Share mine = share_of(batch, thread, team.size());
    std::vector<std::int32_t>& part = parts[static_cast<std::size_t>(thread)];
    if (mine.begin == mine.end) return;
    auto chooser = take_spare(spare_mutex_, spare_samplers_, [this] {
      return std::make_unique<SampleChooser>(settings_.neurons);
    });
    for (Index b = mine.begin; b < mine.end; ++b) {
      const std::size_t before = part.size();
      const std::int64_t first = labels.offsets ? labels.offsets[b] : 0;
      const Index count = labels.offsets ? labels.offsets[b + 1] - first : 0;
      chooser->choose(*state, samples, b, labels.labels + first, count, settings,
                      sample_seed(seed, b), part);
      offsets[static_cast<std::size_t>(b) + 1] = static_cast<std::int64_t>(part.size() - before);
    }
    give_back(spare_mutex_, spare_samplers_, std::move(chooser));
  });
  for (std::size_t b = 1; b < offsets.size(); ++b) offsets[b] += offsets[b - 1];
  rows.clear();
  rows.reserve(static_cast<std::size_t>(offsets.back()));
  for (const auto& part : parts) rows.insert(rows.end(), part.begin(), part.end());
}

// --- looking in from outside

void LshIndex::codes(const float* x, Index ld, Index n, std::uint32_t* codes) const {
  const State state = current();
  std::unique_ptr<HashFunctions> own;
  if (!state) own = std::make_unique<HashFunctions>(hash_settings(settings_.seed));
  const HashFunctions& functions = state ? state->functions : *own;
  HashFunctions::Scratch scratch(functions);
  std::vector<std::uint16_t> block(static_cast<std::size_t>(settings_.tables * kHashBlock));
  for (Index first = 0; first < n; first += kHashBlock) {
    const Index count = std::min<Index>(kHashBlock, n - first);
    const std::vector<const float*> rows = rows_of(x + first * ld, ld, count);
    functions.hash(rows.data(), count, scratch, nullptr, block.data(), kHashBlock);
    for (Index i = 0; i < count; ++i) {
      for (Index table = 0; table < settings_.tables; ++table) {
        codes[(first + i) * settings_.tables + table] =
            block[static_cast<std::size_t>(table * kHashBlock + i)];
      }
    }
  }
}

void LshIndex::codes_sparse(const std::int64_t* offsets, const std::int32_t* columns,
                            const float* values, Index n, std::uint32_t* codes) const {
  const State state = current();
  std::unique_ptr<HashFunctions> own;
  if (!state) own = std::make_unique<HashFunctions>(hash_settings(settings_.seed));
  const HashFunctions& functions = state ? state->functions : *own;
  std::vector<std::uint16_t> row_codes(static_cast<std::size_t>(settings_.tables));
  for (Index i = 0; i < n; ++i) {
    const std::int64_t first = offsets[i];
    functions.hash_sparse(
        {offsets[i + 1] - first, columns + first, values ? values + first : nullptr},
        row_codes.data());
    std::copy(row_codes.begin(), row_codes.end(), codes + i * settings_.tables);
  }
}

std::size_t LshIndex::memory_bytes() const {
  std::size_t sum = static_cast<std::size_t>(settings_.neurons);
  if (const State state = current()) {
    sum += state->tables.bytes() + state->codes.bytes() + state->functions.bytes();
  }
  const std::lock_guard<std::mutex> lock(spare_mutex_);
  for (const auto& chooser : spare_choosers_) sum += chooser->bytes();
  for (const auto& chooser : spare_samplers_) sum += chooser->bytes();
  return sum;
}

Occupancy LshIndex::occupancy() const { return required()->tables.occupancy(); }

}  // namespace mh
