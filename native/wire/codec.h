// Encodings of a chunk's values: what bytes they are on the wire, and how to read them back.
//
//   float32    the floats
//   bfloat16   the upper half of each float, rounded to nearest even
//   int8       ceil(n / 256) float scales, then n signed bytes; a value is its byte times the scale
//              of its block, and a block's scale is its largest magnitude / 127
//   top-k      k positions (u32, strictly rising), then their k floats; every other value is zero
//
// Values that are not finite survive encoding (an int8 block becomes NaN as a whole), so that a
// server can refuse them. Payloads may lie at any address. Decoding never reads or writes out of
// bounds, whatever the bytes are and even while another process changes them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "frame.h"

namespace mh::wire {

// Bytes of n encoded floats. `count` is how many entries top-k keeps; the others ignore it.
std::size_t encoded_bytes(Encoding encoding, std::size_t n, std::size_t count = 0);

// Writes at most encoded_bytes(encoding, n, count) bytes and returns how many. Top-k keeps the
// `count` <= n largest magnitudes, of equal ones the first.
std::size_t encode(Encoding encoding, const float* x, std::size_t n, std::size_t count,
                   std::uint8_t* payload);

// How many entries a top-k payload of so many bytes has.
inline std::size_t kept_entries(std::size_t bytes) { return bytes / 8; }

// Whether a payload is n floats in this encoding: its size, and top-k's positions.
bool well_formed(Encoding encoding, const std::uint8_t* payload, std::size_t bytes, std::size_t n);

// Whether every value of a well-formed payload is finite once decoded.
bool finite(Encoding encoding, const std::uint8_t* payload, std::size_t bytes, std::size_t n);

// Decodes values [first, first + count) of a well-formed payload of n values, so that a chunk can
// be walked block by block while it is in cache. Any range will do.
void decode_range(Encoding encoding, const std::uint8_t* payload, std::size_t bytes, std::size_t n,
                  std::size_t first, std::size_t count, float* out);

// Decodes all n values, or returns false and writes nothing where they are not well formed.
bool decode(Encoding encoding, const std::uint8_t* payload, std::size_t bytes, std::size_t n,
            float* out);

}  // namespace mh::wire
