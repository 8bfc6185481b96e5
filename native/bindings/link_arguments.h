// The arguments of a link's calls, checked: what passes can be followed without looking again.
#pragma once

#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/link.h"
#include "bindings/ranges.h"
#include "wire/encoding_names.h"

namespace mh {

using Outcomes = nb::ndarray<std::int8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

[[noreturn]] inline void refuse(const std::string& message) {
  throw std::invalid_argument(message);
}

inline std::string text(std::size_t number) { return std::to_string(number); }

// Chunk and row numbers from an array of uint32 or int64.
inline std::vector<std::uint32_t> numbers_of(const Numbers& array, const char* what) {
  const bool narrow = array.dtype() == nb::dtype<std::uint32_t>();
  if (!narrow && array.dtype() != nb::dtype<std::int64_t>()) {
    throw nb::type_error((std::string(what) + " must be an array of uint32 or int64.").c_str());
  }
  std::vector<std::uint32_t> numbers(array.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::int64_t number = narrow ? static_cast<const std::uint32_t*>(array.data())[i]
                                       : static_cast<const std::int64_t*>(array.data())[i];
    if (number < 0 || number > std::numeric_limits<std::uint32_t>::max()) {
      refuse(std::string(what) + " has the number " + std::to_string(number) +
             "; expected 0 to 2^32 - 1.");
    }
    numbers[i] = static_cast<std::uint32_t>(number);
  }
  return numbers;
}

// A payload's length travels as 32 bits.
inline void require_payload(std::size_t floats) {
  if (floats >= std::size_t{1} << 29) {
    refuse("A payload has " + text(floats) + " floats; expected less than 2^29.");
  }
}

// What a call says of each chunk beside where its values lie.
struct OfChunks {
  const Counters& versions;
  const std::optional<Numbers>& leases;
  const std::optional<Outcomes>& outcomes;
};

// A call's chunks, and the numbers that they point to.
class ChunkList {
 public:
  ChunkList(const Numbers& chunks, const ConstIntegers& starts, const ConstIntegers& counts,
            const OfChunks& of, std::size_t floats)
      : numbers_(numbers_of(chunks, "chunks")) {
    const Counters& versions = of.versions;
    const Ranges ranges = ranges_within(starts, counts, floats);
    if (ranges.size != numbers_.size() || versions.size() != numbers_.size()) {
      refuse("There are " + text(numbers_.size()) + " chunks, " + text(ranges.size) +
             " ranges and " + text(versions.size()) + " versions; expected as many of each.");
    }
    for (std::size_t i = 0; i < ranges.size; ++i) {
      require_payload(static_cast<std::size_t>(ranges.counts[i]));
      if (versions.data()[i] < 0) {
        refuse("A version is " + std::to_string(versions.data()[i]) + "; expected 0 or more.");
      }
    }
    chunks_ = {ranges.size, numbers_.data(), ranges.starts, ranges.counts, versions.data()};
    take_leases(of.leases);
    if (of.outcomes) {
      require_one_each(of.outcomes->size(), "outcomes");
      chunks_.outcomes = of.outcomes->data();
    }
  }
  operator const client::Chunks&() const { return chunks_; }

 private:
  void take_leases(const std::optional<Numbers>& leases) {
    if (!leases) return;
    leases_ = numbers_of(*leases, "leases");
    require_one_each(leases_.size(), "leases");
    chunks_.leases = leases_.data();
  }
  void require_one_each(std::size_t size, const char* what) const {
    if (size == numbers_.size()) return;
    refuse("There are " + text(numbers_.size()) + " chunks and " + text(size) + " " + what +
           "; expected as many of each.");
  }

  std::vector<std::uint32_t> numbers_, leases_;
  client::Chunks chunks_;
};

// Whether `count` items of a size from `start` on lie within so many.
inline bool within(std::int64_t start, std::int64_t count, std::int64_t each, std::size_t size) {
  const auto room = static_cast<std::int64_t>(size);
  return start >= 0 && start <= room && each >= 1 && count <= (room - start) / each;
}

// The values of each chunk's rows lie within so many floats and fit a payload.
inline void require_row_values(const client::Chunks& chunks, const ConstIntegers& value_starts,
                               const ConstIntegers& widths, std::size_t floats) {
  if (value_starts.size() != chunks.size || widths.size() != chunks.size) {
    refuse("There are " + text(chunks.size) + " chunks, " + text(value_starts.size()) +
           " places of values and " + text(widths.size()) + " widths; expected as many of each.");
  }
  for (std::size_t i = 0; i < chunks.size; ++i) {
    const std::int64_t width = widths.data()[i], rows = chunks.counts[i];
    if (!within(value_starts.data()[i], rows, width, floats)) {
      refuse("The values of " + std::to_string(rows) + " rows of " + std::to_string(width) +
             " floats from " + std::to_string(value_starts.data()[i]) +
             " on are not inside an array of " + text(floats) + ".");
    }
    require_payload(static_cast<std::size_t>(rows * (width + 1)));
  }
}

// Each chunk is whole rows, and has a flag for every one of them.
inline void require_row_flags(const client::Chunks& chunks, const ConstIntegers& widths,
                              const ConstIntegers& row_starts, std::size_t flags,
                              std::size_t eras) {
  if (widths.size() != chunks.size || row_starts.size() != chunks.size || eras != chunks.size) {
    refuse("There are " + text(chunks.size) + " chunks, " + text(widths.size()) + " widths, " +
           text(row_starts.size()) + " places of rows and " + text(eras) +
           " eras; expected as many of each.");
  }
  for (std::size_t i = 0; i < chunks.size; ++i) {
    const std::int64_t width = widths.data()[i], floats = chunks.counts[i];
    if (width >= 1 && floats % width == 0 &&
        within(row_starts.data()[i], floats / width, 1, flags)) {
      continue;
    }
    refuse("A chunk of " + std::to_string(floats) + " floats in rows of " + std::to_string(width) +
           " has its flags from " + std::to_string(row_starts.data()[i]) + " of " + text(flags) +
           " on; expected whole rows and a flag for each.");
  }
}

// An array that goes with one of `floats`, or null.
inline float* beside(const Floats& array, std::size_t floats) {
  if (array.size() != floats) {
    refuse("An array has " + text(array.size()) + " floats; expected the values' " + text(floats) +
           ".");
  }
  return array.data();
}
inline float* beside(const std::optional<Floats>& array, std::size_t floats) {
  return array ? beside(*array, floats) : nullptr;
}

inline client::Compression compression_of(const std::string& encoding, double keep) {
  if (!(keep > 0.0 && keep <= 1.0)) {
    refuse("The share to keep is " + std::to_string(keep) + "; expected more than 0, at most 1.");
  }
  return {wire::encoding_named(encoding), keep};
}

inline wire::Encoding values_encoding(const std::string& name) {
  const wire::Encoding encoding = wire::encoding_named(name);
  if (encoding == wire::Encoding::kTopK) {
    refuse("Values are pulled as float32, bfloat16 or int8, not topk.");
  }
  return encoding;
}

inline wire::Encoding factors_encoding(const std::string& name) {
  const wire::Encoding encoding = wire::encoding_named(name);
  if (encoding != wire::Encoding::kFloat32 && encoding != wire::Encoding::kBfloat16) {
    refuse("Factors travel as float32 or bfloat16, not " + name + ".");
  }
  return encoding;
}

}  // namespace mh
