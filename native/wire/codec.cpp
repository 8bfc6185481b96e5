#include "codec.h"

#include <algorithm>
#include <cstring>

#include "kernels/dispatch.h"
#include "top_k.h"

namespace mh::wire {
namespace {

template <typename T>
T value_at(const std::uint8_t* bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes + i * sizeof value, sizeof value);
  return value;
}

std::size_t blocks_of(std::size_t n) { return (n + kInt8Block - 1) / kInt8Block; }

Index index(std::size_t n) { return static_cast<Index>(n); }

std::size_t encode_int8(const float* x, std::size_t n, std::uint8_t* payload) {
  std::uint8_t* values = payload + 4 * blocks_of(n);
  for (std::size_t first = 0; first < n; first += kInt8Block) {
    const std::size_t size = std::min(kInt8Block, n - first);
    const float scale = kernels().to_int8(index(size), x + first, values + first);
    std::memcpy(payload + 4 * (first / kInt8Block), &scale, sizeof scale);
  }
  return encoded_bytes(Encoding::kInt8, n);
}

void decode_int8(const std::uint8_t* payload, std::size_t n, std::size_t first, std::size_t count,
                 float* out) {
  const std::uint8_t* values = payload + 4 * blocks_of(n);
  for (std::size_t i = first; i < first + count;) {
    const std::size_t block = i / kInt8Block;
    const std::size_t end = std::min((block + 1) * kInt8Block, first + count);
    kernels().from_int8(index(end - i), value_at<float>(payload, block), values + i,
                        out + (i - first));
    i = end;
  }
}

bool finite_int8(const std::uint8_t* payload, std::size_t n) {
  constexpr float kLargestScale = 3.40282347e+38f / 128.0f;
  for (std::size_t block = 0; block < blocks_of(n); ++block) {
    const auto scale = value_at<float>(payload, block);
    if (!(scale >= -kLargestScale && scale <= kLargestScale)) return false;
  }
  return true;
}

std::size_t encode_top_k(const float* x, std::size_t n, std::size_t count, std::uint8_t* payload) {
  const std::size_t found = largest_positions(x, n, count, payload);
  for (std::size_t i = 0; i < found; ++i) {
    const auto position = value_at<std::uint32_t>(payload, i);
    std::memcpy(payload + 4 * (found + i), x + position, sizeof(float));
  }
  return encoded_bytes(Encoding::kTopK, n, found);
}

bool positions_rise(const std::uint8_t* payload, std::size_t count, std::size_t n) {
  std::uint64_t next = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t position = value_at<std::uint32_t>(payload, i);
    if (position < next || position >= n) return false;
    next = position + 1;
  }
  return true;
}

// The first entry whose position is not below `first`.
std::size_t entry_from(const std::uint8_t* payload, std::size_t entries, std::size_t first) {
  std::size_t low = 0, high = entries;
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (value_at<std::uint32_t>(payload, middle) < first) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

void decode_top_k(const std::uint8_t* payload, std::size_t entries, std::size_t first,
                  std::size_t count, float* out) {
  std::fill(out, out + count, 0.0f);
  for (std::size_t i = entry_from(payload, entries, first); i < entries; ++i) {
    // A position that changed since it was checked wraps to a large offset and ends the walk.
    const std::size_t offset = std::size_t{value_at<std::uint32_t>(payload, i)} - first;
    if (offset >= count) return;
    out[offset] = value_at<float>(payload, entries + i);
  }
}

}  // namespace

std::size_t encoded_bytes(Encoding encoding, std::size_t n, std::size_t count) {
  switch (encoding) {
    case Encoding::kFloat32:
      return 4 * n;
    case Encoding::kBfloat16:
      return 2 * n;
    case Encoding::kInt8:
      return 4 * blocks_of(n) + n;
    case Encoding::kTopK:
      return 8 * count;
  }
  return 0;
}

std::size_t encode(Encoding encoding, const float* x, std::size_t n, std::size_t count,
                   std::uint8_t* payload) {
  switch (encoding) {
    case Encoding::kFloat32:
      if (n > 0) std::memcpy(payload, x, 4 * n);
      break;
    case Encoding::kBfloat16:
      kernels().to_bfloat16(index(n), x, payload);
      break;
    case Encoding::kInt8:
      return encode_int8(x, n, payload);
    case Encoding::kTopK:
      return encode_top_k(x, n, count, payload);
  }
  return encoded_bytes(encoding, n);
}

bool well_formed(Encoding encoding, const std::uint8_t* payload, std::size_t bytes, std::size_t n) {
  switch (encoding) {
    case Encoding::kFloat32:
    case Encoding::kBfloat16:
    case Encoding::kInt8:
      return bytes == encoded_bytes(encoding, n);
    case Encoding::kTopK:
      return bytes % 8 == 0 && kept_entries(bytes) <= n &&
             positions_rise(payload, kept_entries(bytes), n);
  }
  return false;  // an encoding of a later version, or nonsense
}

bool finite(Encoding encoding, const std::uint8_t* payload, std::size_t bytes, std::size_t n) {
  switch (encoding) {
    case Encoding::kFloat32:
      return kernels().all_finite(index(n), payload);
    case Encoding::kBfloat16:
      return kernels().all_finite_bfloat16(index(n), payload);
    case Encoding::kInt8:
      return finite_int8(payload, n);
    case Encoding::kTopK: {
      const std::size_t entries = kept_entries(bytes);
      return kernels().all_finite(index(entries), payload + 4 * entries);
    }
  }
  return false;
}

void decode_range(Encoding encoding, const std::uint8_t* payload, std::size_t bytes, std::size_t n,
                  std::size_t first, std::size_t count, float* out) {
  switch (encoding) {
    case Encoding::kFloat32:
      if (count > 0) std::memcpy(out, payload + 4 * first, 4 * count);
      break;
    case Encoding::kBfloat16:
      kernels().from_bfloat16(index(count), payload + 2 * first, out);
      break;
    case Encoding::kInt8:
      decode_int8(payload, n, first, count, out);
      break;
    case Encoding::kTopK:
      decode_top_k(payload, kept_entries(bytes), first, count, out);
      break;
  }
}

bool decode(Encoding encoding, const std::uint8_t* payload, std::size_t bytes, std::size_t n,
            float* out) {
  if (!well_formed(encoding, payload, bytes, n)) return false;
  decode_range(encoding, payload, bytes, n, 0, n, out);
  return true;
}

}  // namespace mh::wire
