// Copies out of a server's memory while updates are applied to it, which race on purpose.
#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"
#include "client/shared_values.h"
#include "random.h"
#include "server/chunk_store.h"

namespace mh::test {
namespace {

// Only what is held under the lease that was asked for is copied.
void test_leases() {
  constexpr std::size_t kFloats = 64;
  struct {
    std::uint64_t version = 0;
    std::uint32_t lease = 6;
    std::uint32_t unused = 0;
    float weights[kFloats] = {};
  } memory;
  client::SharedValues shared(reinterpret_cast<const std::uint8_t*>(&memory), sizeof memory);
  shared.place(7, 16, 0);
  Array out(kFloats);
  check(shared.copy(7, 6, kFloats, out.data()).has_value(), "held under the lease");
  check(shared.copy(7, 0, kFloats, out.data()).has_value(), "no opinion");
  check(!shared.copy(7, 5, kFloats, out.data()).has_value(), "held under another lease");
  __atomic_store_n(&memory.lease, 0, __ATOMIC_RELEASE);
  check(!shared.copy(7, 6, kFloats, out.data()).has_value(), "given up");
}

// Rows change one at a time, and now and then all at once: a reader that asks for what changed has
// everything in the end, and never a row that is older than its version.
void test_rows() {
  constexpr std::size_t kRows = 61, kWidth = 5, kFloats = kRows * kWidth;
  constexpr std::uint64_t kUpdates = 20000;
  constexpr std::size_t kWeightsAt = 64, kVersionsAt = (kWeightsAt + 4 * kFloats + 63) / 64 * 64;
  alignas(64) static std::uint8_t memory[kVersionsAt + 8 * kRows];
  std::memset(memory, 0, sizeof memory);
  auto* line = reinterpret_cast<server::SharedLine*>(memory);
  auto* weights = reinterpret_cast<float*>(memory + kWeightsAt);
  server::RowChanges changes(reinterpret_cast<std::uint64_t*>(memory + kVersionsAt), kRows,
                             &line->era);
  changes.begin_era();
  client::SharedValues shared(memory, sizeof memory);
  shared.place(7, kWeightsAt, 0);
  shared.require_rows(7, kRows, kWidth);

  std::thread server([&] {
    Random random(1);
    for (std::uint64_t version = 1; version <= kUpdates; ++version) {
      const bool all = version % 1000 == 0;
      const std::size_t first = all ? 0 : random.next() % kRows, end = all ? kRows : first + 1;
      for (std::size_t i = first * kWidth; i < end * kWidth; ++i) {
        weights[i] = static_cast<float>(version);
      }
      if (!all) changes.note(first, version);
      __atomic_store_n(&line->version, version, __ATOMIC_RELEASE);
      if (all) changes.begin_era();
    }
  });
  Array out(kFloats);
  std::vector<std::uint8_t> changed(kRows);
  client::SharedValues::Known known{0, 0};
  std::size_t eras = 0;
  while (known.version < kUpdates || known.era != changes.era()) {
    std::fill(changed.begin(), changed.end(), std::uint8_t{0});
    const Array before = out;
    const auto copied =
        shared.copy_rows(7, 0, kRows, kWidth, known, out.data(), changed.data()).value();
    check(copied.now.version >= known.version, "versions rise");
    if (copied.now.era != known.era) {
      check(copied.rows == kRows, "all rows come with a new era");
      ++eras;
    }
    for (std::size_t i = 0; i < kFloats; ++i) {
      check(changed[i / kWidth] == 1 || out[i] == before[i], "what is not told stays");
    }
    known = copied.now;
  }
  server.join();
  for (std::size_t i = 0; i < kFloats; ++i) check(out[i] == weights[i], "nothing is missed");
  check(eras >= 1 && eras <= 1 + kUpdates / 1000, "eras change when the server says so");
  const auto rows_now = [&] {
    return shared.copy_rows(7, 0, kRows, kWidth, known, out.data(), changed.data()).value().rows;
  };
  check(rows_now() == 0, "rows that are known do not come again");
  changes.note(3, kUpdates + 1);
  __atomic_store_n(&line->version, kUpdates + 1, __ATOMIC_RELEASE);
  check(rows_now() == 1, "one row that changed comes alone");
}

}  // namespace

void test_shared_values(const KernelTable& table) {
  test_leases();
  test_rows();
  constexpr std::size_t kFloats = 1003;
  constexpr std::uint64_t kUpdates = 2000;
  struct {
    std::uint64_t version = 0;
    float weights[kFloats] = {};
  } memory;
  client::SharedValues shared(reinterpret_cast<const std::uint8_t*>(&memory), sizeof memory);
  shared.place(7, sizeof memory.version, 0);
  shared.require(7, kFloats);

  std::thread server([&] {
    const Array grad(kFloats, -1.0f);
    const RuleStep step = at_step(Rule("sgd", RuleSettings{}), 1.0, 1, 1.0);
    for (std::uint64_t version = 1; version <= kUpdates; ++version) {
      table.update(step, kFloats, memory.weights, grad.data(), nullptr, nullptr);
      __atomic_store_n(&memory.version, version, __ATOMIC_RELEASE);
    }
  });
  Array out(kFloats);
  std::uint64_t version = 0;
  while (version < kUpdates) {
    const std::uint64_t next = shared.copy(7, 0, kFloats, out.data()).value();
    check(next >= version, "versions rise");
    version = next;
    for (const float x : out) {
      check(x >= static_cast<float>(version), "values are as new as their version, or newer");
      check(x <= static_cast<float>(kUpdates) && x == std::floor(x), "no float is torn");
    }
  }
  server.join();
}

}  // namespace mh::test
