// Encodings there and back at odd sizes and addresses, and payloads of random bytes.
#include <cstring>

#include "check.h"
#include "wire/codec.h"

namespace mh::test {
namespace {

using wire::Encoding;

constexpr Encoding kAll[] = {Encoding::kFloat32, Encoding::kBfloat16, Encoding::kInt8,
                             Encoding::kTopK};

// Exactly the bytes, at an odd address: a sanitizer sees a step beyond them, or an aligned access.
struct Payload {
  explicit Payload(std::size_t bytes) : memory(bytes + 1), size(bytes) {}
  std::uint8_t* data() { return memory.data() + 1; }
  std::vector<std::uint8_t> memory;
  std::size_t size;
};

void test_there_and_back(std::size_t n) {
  const Array x = random_array(static_cast<Index>(n), n, 3.0f);
  for (const Encoding encoding : kAll) {
    const std::size_t count = (n + 2) / 3;
    Payload payload(wire::encoded_bytes(encoding, n, count));
    const std::size_t bytes = wire::encode(encoding, x.data(), n, count, payload.data());
    check(bytes == payload.size, "encoded size");
    check(wire::finite(encoding, payload.data(), bytes, n), "finite");
    Array whole(n), pieces(n);
    check(wire::decode(encoding, payload.data(), bytes, n, whole.data()), "well formed");
    for (std::size_t first = 0; first < n; first += 37) {
      const std::size_t size = std::min<std::size_t>(37, n - first);
      wire::decode_range(encoding, payload.data(), bytes, n, first, size, pieces.data() + first);
    }
    check(whole == pieces, "a range decodes as the whole does");
    if (encoding == Encoding::kTopK) continue;
    check(close(whole, x, encoding == Encoding::kFloat32 ? 0.0f : 0.02f), "close to the values");
  }
}

void test_top_k_keeps_the_largest() {
  const Array x = {0.0f, -5.0f, 1.0f, 1.0f, -1.0f, 4.0f};
  Payload payload(wire::encoded_bytes(Encoding::kTopK, x.size(), 3));
  Array out(x.size());
  wire::encode(Encoding::kTopK, x.data(), x.size(), 3, payload.data());
  check(wire::decode(Encoding::kTopK, payload.data(), payload.size, x.size(), out.data()), "top-k");
  check(out == Array({0.0f, -5.0f, 1.0f, 0.0f, 0.0f, 4.0f}), "largest, of equal ones the first");
}

void test_nonsense_stays_in_bounds() {
  Random random(7);
  for (int round = 0; round < 2000; ++round) {
    const auto encoding = static_cast<Encoding>(random.next() >> 61);
    const std::size_t n = random.next() >> 55, first = (random.next() >> 32) % (n + 1);
    const std::size_t size = wire::encoded_bytes(encoding, n, n / 4);
    Payload payload(size);
    for (std::size_t i = 0; i < size; ++i) {
      payload.data()[i] = static_cast<std::uint8_t>(random.next() >> (i % 4 == 0 ? 56 : 63));
    }
    Array out(n - first);
    wire::finite(encoding, payload.data(), size, n);
    wire::decode_range(encoding, payload.data(), size, n, first, n - first, out.data());
    wire::well_formed(encoding, payload.data(), size, n + 1);
  }
}

void test_not_finite(Encoding encoding, float bad) {
  for (std::size_t at : {0u, 5u, 299u}) {
    Array x = random_array(300, 9);
    x[at] = bad;
    Payload payload(wire::encoded_bytes(encoding, x.size(), 2));
    const std::size_t bytes = wire::encode(encoding, x.data(), x.size(), 2, payload.data());
    check(!wire::finite(encoding, payload.data(), bytes, x.size()), "a bad value is noticed");
  }
}

}  // namespace

void test_codec(const KernelTable&) {
  for (const std::size_t n : {0u, 1u, 2u, 15u, 31u, 33u, 255u, 256u, 257u, 700u}) {
    test_there_and_back(n);
  }
  test_top_k_keeps_the_largest();
  test_nonsense_stays_in_bounds();
  for (const Encoding encoding : kAll) {
    for (const float bad : {INFINITY, -INFINITY, NAN}) test_not_finite(encoding, bad);
  }
}

}  // namespace mh::test
