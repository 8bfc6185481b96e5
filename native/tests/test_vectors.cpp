// What vec.h promises of a Vec, checked lane by lane; compiled once for every kind of vector, that
// of AVX-512 with its instructions emulated, since few machines that run tests have them.

#include <cmath>
#include <cstring>

#include "check.h"
#include "kernels/vec.h"

namespace mh::MH_ISA {

void check_vectors() {
  using test::Array;
  using test::check;
  constexpr int n = kLanes;
  const Array x = test::random_array(n, 1), y = test::random_array(n, 2), z = test::random_array(n, 3);
  const Vec a = load(x.data()), b = load(y.data()), c = load(z.data());
  Array out(n), other(n);
  const auto lanes = [&](Vec v, auto expected, const char* what) {
    store(out.data(), v);
    for (int i = 0; i < n; ++i) check(std::fabs(out[i] - expected(i)) <= 1e-6f, what);
  };

  lanes(a, [&](int i) { return x[i]; }, "load, store");
  lanes(splat(0.5f), [](int) { return 0.5f; }, "splat");
  lanes(a + b * c - a / (b * b + splat(1.0f)),
        [&](int i) { return x[i] + y[i] * z[i] - x[i] / (y[i] * y[i] + 1.0f); }, "operators");
  lanes(fma(a, b, c), [&](int i) { return x[i] * y[i] + z[i]; }, "fma");
  lanes(root(a * a), [&](int i) { return std::fabs(x[i]); }, "root");
  lanes(larger(a, b), [&](int i) { return x[i] > y[i] ? x[i] : y[i]; }, "larger");
  lanes(lesser(a, b), [&](int i) { return x[i] < y[i] ? x[i] : y[i]; }, "lesser");
  lanes(larger(splat(NAN), b), [&](int i) { return y[i]; }, "larger takes b for NaN");
  lanes(pick(above(a, b), b, c), [&](int i) { return x[i] > y[i] ? y[i] : z[i]; }, "above, pick");
  lanes(keep(above(a, b), c), [&](int i) { return x[i] > y[i] ? z[i] : 0.0f; }, "keep");
  lanes(keep(same(a, larger(a, b)), c), [&](int i) { return x[i] >= y[i] ? z[i] : 0.0f; }, "same");

  for (int part = 0; part <= n; ++part) {
    const Array exact(x.begin(), x.begin() + part);  // a step beyond it is for a sanitizer to see
    lanes(load_part(exact.data(), part), [&](int i) { return i < part ? x[i] : 0.0f; }, "load_part");
    Array room = y;
    store_part(room.data(), part, a);
    for (int i = 0; i < n; ++i) check(room[i] == (i < part ? x[i] : y[i]), "store_part");
  }

  double total = 0.0;
  for (const float value : x) total += value;
  check(std::fabs(sum(a) - total) <= 1e-5, "sum");
  check(std::fabs(sum_wide(a) - total) <= 1e-12 * n, "sum_wide");
  const Vec four[4] = {a, b, c, a + b};
  float sums[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  add_sums4(four, sums);
  for (int i = 0; i < 4; ++i) {
    check(std::fabs(sums[i] - (static_cast<float>(i + 1) + sum(four[i]))) <= 1e-5f, "add_sums4");
  }

  Vec even, odd, first, second;
  deinterleave(a, b, even, odd);
  const auto both = [&](int i) { return i < n ? x[i] : y[i - n]; };
  lanes(even, [&](int i) { return both(2 * i); }, "deinterleave, even");
  lanes(odd, [&](int i) { return both(2 * i + 1); }, "deinterleave, odd");
  interleave(even, odd, first, second);
  lanes(first, [&](int i) { return x[i]; }, "interleave, first");
  lanes(second, [&](int i) { return y[i]; }, "interleave, second");

  const Array matrix = test::random_array(n * (n + 3), 4);
  Vec columns[kLanes];
  load_turned(matrix.data(), n + 3, columns);
  for (int j = 0; j < n; ++j) {
    lanes(columns[j], [&](int i) { return matrix[i * (n + 3) + j]; }, "load_turned");
  }

  Lanes32 places = {};
  for (int i = 0; i < n; ++i) {
    other[i] = i % 3 == 1 ? x[i] : i % 5 == 2 ? NAN : i % 2 ? 0.0f : -0.0f;
    places[i] = static_cast<std::uint32_t>(7 * i);
  }
  std::uint32_t listed[n];
  const int count = store_nonzeros(out.data(), listed, load(other.data()), places);
  int place = 0;
  for (int i = 0; i < n; ++i) {
    if (other[i] == 0.0f) continue;
    check(std::memcmp(&out[place], &other[i], sizeof(float)) == 0, "store_nonzeros, values");
    check(listed[place++] == static_cast<std::uint32_t>(7 * i), "store_nonzeros, places");
  }
  check(count == place, "store_nonzeros, count");

  std::uint8_t bytes[n];
  for (int i = 0; i < n; ++i) other[i] = static_cast<float>((i * 37) % 128);
  store_bytes(bytes, load(other.data()));
  for (int i = 0; i < n; ++i) check(bytes[i] == (i * 37) % 128, "store_bytes");
  for (int i = 0; i < n; ++i) bytes[i] = static_cast<std::uint8_t>(255 - i);
  lanes(load_bytes(bytes), [&](int i) { return static_cast<float>(255 - i); }, "load_bytes");

  Lanes32 noise = {};
  for (int i = 0; i < n; ++i) noise[i] = static_cast<std::uint32_t>((i * 9973) & 0xffff);
  std::uint16_t halves[n];
  store_halves(halves, a, noise);
  for (int i = 0; i < n; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, &x[i], sizeof bits);
    check(halves[i] == static_cast<std::uint16_t>((bits + noise[i]) >> 16), "store_halves");
  }
  store(out.data(), load_halves(halves));
  for (int i = 0; i < n; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, &out[i], sizeof bits);
    check(bits == std::uint32_t{halves[i]} << 16, "load_halves");
  }
}

}  // namespace mh::MH_ISA
