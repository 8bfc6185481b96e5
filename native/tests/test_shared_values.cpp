// Copies out of a server's memory while updates are applied to it, which race on purpose.
#include <thread>

#include "check.h"
#include "client/shared_values.h"

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

}  // namespace

void test_shared_values(const KernelTable& table) {
  test_leases();
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
