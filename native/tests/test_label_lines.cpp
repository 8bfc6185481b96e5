// Extreme-label text under the sanitizers: every block exactly as long as its text, and random
// bytes of the kind that breaks parsers.
#include <cstring>
#include <string>

#include "check.h"
#include "data/label_lines.h"

namespace mh::test {
namespace {

LabelLines parse(const std::string& text, NumberRange range = {0, 100}) {
  const std::vector<char> exact(text.begin(), text.end());
  return parse_label_lines(exact.data(), exact.size(), 1, range, range, 10);
}

void test_samples() {
  const LabelLines found = parse("3,1 2:0.5 7:-1e-3\r\n\n# note\n 5:1 # tail\n9\n4,4 8:1 2:2 8:3");
  check(found.lines == 6 && found.blank == 1 && found.faults == 0, "lines");
  check(found.sample_lines == std::vector<std::int64_t>{1, 4, 5, 6}, "sample lines");
  check(found.label_counts == std::vector<std::int64_t>{2, 0, 1, 1}, "label counts");
  check(found.feature_counts == std::vector<std::int64_t>{2, 1, 0, 2}, "feature counts");
  check(found.labels == std::vector<std::int32_t>{1, 3, 9, 4}, "labels");
  check(found.columns == std::vector<std::int32_t>{2, 7, 5, 2, 8}, "columns");
  check(found.values == std::vector<float>{0.5f, -1e-3f, 1.0f, 2.0f, 4.0f}, "values");
  check(found.repeats == 1 && found.first_repeats[0].line == 6, "repeats");
}

void test_faults() {
  for (const char* line : {"1,,2 3:1", "1, 3:1", "x 3:1", "100 3:1", "-1 3:1", "1 3", "1 3:", "1 :3",
                           "1 3:x", "1 3:nan", "1 3:1e39", "1 100:1", "1 3:1:2", "1 3.0:1", "1 3:0x1",
                           "99999999999999999999999 3:1", "\x01\xff", "1 3:3e38 3:3e38"}) {
    const LabelLines found = parse(std::string(line) + "\n5 6:7\n");
    check(found.faults == 1 && found.first_faults[0].line == 1, line);
    check(found.labels.size() == 1 && found.columns.size() == 1 && found.values.size() == 1, line);
  }
}

void test_random_bytes() {
  constexpr char kBytes[] = "0123456789,:. \t\r\n#+-eEnainf\0\xff";
  Random random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (std::uint64_t n = random.next() % 60; n > 0; --n) {
      text += kBytes[random.next() % (sizeof kBytes - 1)];
    }
    const LabelLines found = parse(text, {1, 50});
    const auto samples = static_cast<std::int64_t>(found.label_counts.size());
    check(samples + found.faults + found.blank <= found.lines, "random bytes");
  }
}

}  // namespace

void test_label_lines() {
  test_samples();
  test_faults();
  test_random_bytes();
}

}  // namespace mh::test
