#include "checksum.h"

#include <array>
#include <cstring>

#include "kernels/dispatch.h"

#if defined(MANYHANDS_X86)
#include <nmmintrin.h>
#endif

namespace mh {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli's, bits reversed
constexpr std::size_t kSlices = 8;
using Tables = std::array<std::array<std::uint32_t, 256>, kSlices>;

// tables[k][b]: what byte b does to the checksum when k bytes follow it in the same step.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ kPolynomial : crc >> 1;
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < kSlices; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t crc = tables[k - 1][byte];
      tables[k][byte] = crc >> 8 ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint64_t load_word(const std::uint8_t* data) {
  std::uint64_t word = 0;  // little-endian, on any machine
  for (std::size_t i = 0; i < 8; ++i) word |= std::uint64_t{data[i]} << 8 * i;
  return word;
}

#if defined(MANYHANDS_X86)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(const std::uint8_t* data,
                                                             std::size_t size,
                                                             std::uint32_t before) {
  std::uint64_t crc = ~before;
  for (; size >= 8; data += 8, size -= 8) {
    std::uint64_t word;
    std::memcpy(&word, data, sizeof word);
    crc = _mm_crc32_u64(crc, word);
  }
  auto rest = static_cast<std::uint32_t>(crc);
  for (; size > 0; ++data, --size) rest = _mm_crc32_u8(rest, *data);
  return ~rest;
}
#endif

std::uint32_t crc32c_portable(const std::uint8_t* data, std::size_t size, std::uint32_t before) {
  std::uint32_t crc = ~before;
  for (; size >= 8; data += 8, size -= 8) {
    std::uint64_t word = load_word(data) ^ crc;
    crc = 0;
    for (std::size_t k = kSlices; k-- > 0; word >>= 8) crc ^= kTables[k][word & 0xff];
  }
  for (; size > 0; ++data, --size) crc = crc >> 8 ^ kTables[0][(crc ^ *data) & 0xff];
  return ~crc;
}

}  // namespace

std::uint32_t crc32c(const std::uint8_t* data, std::size_t size, std::uint32_t before) {
#if defined(MANYHANDS_X86)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  const bool asked_for_tables = std::strcmp(kernels().name, "portable") == 0;
  if (has_instruction && !asked_for_tables) return crc32c_sse42(data, size, before);
#endif
  return crc32c_portable(data, size, before);
}

}  // namespace mh
