#include "data/label_lines.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "data/decimal.h"

namespace mh {
namespace {

constexpr std::size_t kQuoted = 40;  // bytes of a faulty word that are shown
constexpr char kCarriageReturn[] =
    "a carriage return stands in its middle: end lines with line feeds (tr '\\r' '\\n')";

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f'; }

std::string shortened(std::string_view word) {
  return std::string(word.substr(0, kQuoted)) + (word.size() > kQuoted ? "..." : "");
}

std::string quoted(std::string_view word) {
  std::string text = "'";
  for (const char c : word.substr(0, kQuoted)) {
    if (c >= 0x20 && c < 0x7f) {
      text += c;
    } else {
      constexpr char kDigits[] = "0123456789abcdef";
      const auto byte = static_cast<unsigned char>(c);
      text += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return text + (word.size() > kQuoted ? "...'" : "'");
}

// A number of the file as an index from 0; otherwise the reason in `reason`.
bool take_index(const char* what, std::string_view word, NumberRange range, std::int32_t& index,
                std::string& reason) {
  std::int64_t number = 0;
  const Decimal kind = whole_number(word.data(), word.data() + word.size(), number);
  if (kind == Decimal::kNotANumber) {
    reason = std::string(what) + " " + quoted(word) + " is not a whole number";
    return false;
  }
  const std::int64_t last = range.first + range.count - 1;
  if (kind == Decimal::kTooLarge || number < range.first || number > last) {
    reason = std::string(what) + " " + shortened(word) +
             " is out of range: expected " + std::to_string(range.first) + " to " +
             std::to_string(last);
    return false;
  }
  index = static_cast<std::int32_t>(number - range.first);
  return true;
}

// The samples of one block under construction.
class Parser {
 public:
  Parser(NumberRange labels, NumberRange features, std::size_t most_notes)
      : label_range_(labels), feature_range_(features), most_notes_(most_notes) {}

  void line(const char* at, const char* end, std::int64_t number) {
    ++result_.lines;
    while (at != end && is_space(*at)) ++at;
    while (at != end && is_space(end[-1])) --end;
    if (std::memchr(at, '\r', static_cast<std::size_t>(end - at)) != nullptr) {
      return note(result_.faults, result_.first_faults, number, kCarriageReturn);
    }
    const char* stop = comment_start(at, end);
    const bool comment = stop != end;
    end = stop;
    while (at != end && is_space(end[-1])) --end;
    if (at == end) {
      result_.blank += comment ? 0 : 1;
      return;
    }
    repeat_.clear();
    const std::size_t labels = result_.labels.size(), columns = result_.columns.size();
    if (sample(at, end) && finish_features(columns)) {
      finish_labels(labels);
      result_.sample_lines.push_back(number);
      result_.label_counts.push_back(static_cast<std::int64_t>(result_.labels.size() - labels));
      result_.feature_counts.push_back(static_cast<std::int64_t>(result_.columns.size() - columns));
      if (!repeat_.empty()) note(result_.repeats, result_.first_repeats, number, repeat_);
      return;
    }
    result_.labels.resize(labels);
    result_.columns.resize(columns);
    result_.values.resize(columns);
    note(result_.faults, result_.first_faults, number, reason_);
  }

  LabelLines take() { return std::move(result_); }

 private:
  // Where a comment begins: at a # in front of which there is nothing or a space.
  static const char* comment_start(const char* at, const char* end) {
    for (const char* from = at; from != end;) {
      const auto* found = static_cast<const char*>(
          std::memchr(from, '#', static_cast<std::size_t>(end - from)));
      if (found == nullptr) return end;
      if (found == at || is_space(found[-1])) return found;
      from = found + 1;
    }
    return end;
  }

  void note(std::int64_t& count, std::vector<LineNote>& first, std::int64_t line,
            const std::string& reason) {
    if (static_cast<std::size_t>(count) < most_notes_) first.push_back({line, reason});
    ++count;
  }

  bool fault(std::string reason) {
    reason_ = std::move(reason);
    return false;
  }

  // Words of a line that neither begins nor ends with a space. The first one without a colon
  // names labels.
  bool sample(const char* at, const char* end) {
    for (bool first = true; at != end; first = false) {
      const char* stop = at;
      const char* colon = nullptr;
      for (; stop != end && !is_space(*stop); ++stop) {
        if (*stop == ':' && colon == nullptr) colon = stop;
      }
      const bool fine = first && colon == nullptr ? take_labels(at, stop)
                                                  : take_feature(at, colon, stop);
      if (!fine) return false;
      for (at = stop; at != end && is_space(*at);) ++at;
    }
    return true;
  }

  bool take_labels(const char* at, const char* end) {
    for (;;) {
      const char* comma = std::find(at, end, ',');
      const std::string_view word(at, static_cast<std::size_t>(comma - at));
      if (word.empty()) return fault("a label is missing beside a comma");
      std::int32_t label = 0;
      if (!take_index("label", word, label_range_, label, reason_)) return false;
      result_.labels.push_back(label);
      if (comma == end) return true;
      at = comma + 1;
    }
  }

  bool take_feature(const char* at, const char* colon, const char* end) {
    const std::string_view word(at, static_cast<std::size_t>(end - at));
    if (colon == nullptr) return fault(quoted(word) + " has no colon: expected feature:value");
    const std::string_view name(at, static_cast<std::size_t>(colon - at));
    const std::string_view number(colon + 1, static_cast<std::size_t>(end - colon - 1));
    if (name.empty()) return fault(quoted(word) + " has no feature before its colon");
    std::int32_t column = 0;
    if (!take_index("feature", name, feature_range_, column, reason_)) return false;
    if (number.empty()) return fault("feature " + shortened(name) + " has no value");
    float value = 0.0f;
    const Decimal kind = real_number(number.data(), number.data() + number.size(), value);
    if (kind != Decimal::kNumber) return fault(value_fault(name, number, kind));
    result_.columns.push_back(column);
    result_.values.push_back(value);
    return true;
  }

  static std::string value_fault(std::string_view name, std::string_view number, Decimal kind) {
    const char* problem = kind == Decimal::kNotFinite ? " is not finite"
                          : kind == Decimal::kTooLarge ? " is too large for a float"
                                                       : " is not a number";
    return "the value " + quoted(number) + " of feature " + shortened(name) + problem;
  }

  void repeat(const char* what, std::int32_t index, NumberRange range) {
    if (repeat_.empty()) {
      repeat_ = std::string(what) + " " + std::to_string(index + range.first) + " is named twice";
    }
  }

  // Ascending and each once; a label that is named twice counts once.
  void finish_labels(std::size_t start) {
    std::vector<std::int32_t>& labels = result_.labels;
    const auto begin = labels.begin() + static_cast<std::ptrdiff_t>(start);
    if (!std::is_sorted(begin, labels.end())) std::sort(begin, labels.end());
    const auto twice = std::adjacent_find(begin, labels.end());
    if (twice != labels.end()) {
      repeat("label", *twice, label_range_);
      labels.erase(std::unique(twice, labels.end()), labels.end());
    }
  }

  // Ascending and each once; the values of a feature that is named twice are added up.
  bool finish_features(std::size_t start) {
    std::vector<std::int32_t>& columns = result_.columns;
    std::vector<float>& values = result_.values;
    bool ascending = true;
    for (std::size_t i = start + 1; i < columns.size(); ++i) {
      ascending = ascending && columns[i - 1] < columns[i];
    }
    if (ascending) return true;
    pairs_.clear();
    for (std::size_t i = start; i < columns.size(); ++i) pairs_.emplace_back(columns[i], values[i]);
    std::stable_sort(pairs_.begin(), pairs_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    columns.resize(start);
    values.resize(start);
    for (const auto& [column, value] : pairs_) {
      if (columns.size() == start || columns.back() != column) {
        columns.push_back(column);
        values.push_back(value);
        continue;
      }
      repeat("feature", column, feature_range_);
      values.back() += value;
      if (!std::isfinite(values.back())) {
        return fault("the values of feature " + std::to_string(column + feature_range_.first) +
                     " add up to more than a float holds");
      }
    }
    return true;
  }

  NumberRange label_range_, feature_range_;
  std::size_t most_notes_;
  LabelLines result_;
  std::string reason_, repeat_;
  std::vector<std::pair<std::int32_t, float>> pairs_;
};

}  // namespace

LabelLines parse_label_lines(const char* text, std::size_t size, std::int64_t first_line,
                             NumberRange labels, NumberRange features, std::size_t most_notes) {
  Parser parser(labels, features, most_notes);
  const char* const end = text + size;
  for (const char* at = text; at != end; ++first_line) {
    const auto* feed = static_cast<const char*>(
        std::memchr(at, '\n', static_cast<std::size_t>(end - at)));
    parser.line(at, feed ? feed : end, first_line);
    at = feed ? feed + 1 : end;
  }
  return parser.take();
}

}  // namespace mh
