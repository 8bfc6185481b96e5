// Lines of extreme-label text as numbers: "12,7 4:0.5 19:1.25", labels and then feature:value.
//
// The text comes from outside: whatever a line holds, it becomes a sample or a fault with a reason,
// and memory grows with the text, never with a number that the text names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mh {

// Which numbers a file may use: `count` of them from `first` on; they become 0 to count - 1.
struct NumberRange {
  std::int64_t first = 0;
  std::int64_t count = INT32_MAX;
};

struct LineNote {
  std::int64_t line;
  std::string reason;
};

struct LabelLines {
  // Per sample: its line, how many labels and features it has. Then all of them, one sample after
  // another, ascending and each once within a sample.
  std::vector<std::int64_t> sample_lines, label_counts, feature_counts;
  std::vector<std::int32_t> labels, columns;
  std::vector<float> values;

  std::int64_t lines = 0;  // all of them: samples, faults, blank lines and comments
  std::int64_t blank = 0;  // without a comment
  std::int64_t faults = 0, repeats = 0;
  // The first ones: lines that are no sample, and samples that name a feature or label twice.
  std::vector<LineNote> first_faults, first_repeats;
};

// Every line of `text`; a last one without a line feed counts as a line. `first_line` numbers the
// first of them; at most `most_notes` faults, and as many repeats, are kept in words.
LabelLines parse_label_lines(const char* text, std::size_t size, std::int64_t first_line,
                             NumberRange labels, NumberRange features, std::size_t most_notes);

}  // namespace mh
