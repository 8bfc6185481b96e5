// The flat walks against plain loops, at sizes around a vector's width.
#include "check.h"

namespace mh::test {
namespace {

void test_merge(const KernelTable& table, Index n, bool with_sent) {
  Array local = random_array(n, 1), base = random_array(n, 2), expected = local;
  const Array sent = random_array(n, 3), pulled = random_array(n, 4);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] += pulled[i] - (base[i] - (with_sent ? sent[i] : 0.0f));
  }
  table.merge(n, local.data(), base.data(), with_sent ? sent.data() : nullptr, pulled.data());
  check(close(local, expected, 1e-6f) && base == pulled, "merge");
}

}  // namespace

void test_flat(const KernelTable& table) {
  for (const Index n : {0, 1, 3, 7, 8, 9, 16, 17, 65}) {
    const Array x = random_array(n, 5), y = random_array(n, 6), zeros(x.size(), 0.0f);
    Array accumulated = x, outgoing = y, staged(x.size(), 9.0f), sums(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) sums[i] = x[i] + y[i];
    table.add_and_clear(n, accumulated.data(), outgoing.data());
    check(accumulated == zeros && outgoing == sums, "add_and_clear");
    table.take(n, outgoing.data(), staged.data());
    check(outgoing == zeros && staged == sums, "take");
    table.difference(n, staged.data(), y.data(), accumulated.data());
    check(close(accumulated, x, 1e-6f), "difference");
    test_merge(table, n, true);
    test_merge(table, n, false);
  }
}

}  // namespace mh::test
