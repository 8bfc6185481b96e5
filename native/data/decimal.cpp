#include "data/decimal.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>

namespace mh {
namespace {

constexpr int kMostDigits = 18;  // always fit into 64 bits
constexpr int kExactPower = 22;  // the largest power of ten that a double holds exactly
constexpr std::uint64_t kExactMantissa = std::uint64_t{1} << 53;
constexpr double kPowers[kExactPower + 1] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                             1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                             1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
constexpr int kHugeExponent = 100000;  // far beyond any float; larger ones are read as this

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Written digits as mantissa * 10^exponent; `digits` counts those of the mantissa.
struct Parts {
  bool negative = false;
  std::uint64_t mantissa = 0;
  int digits = 0, exponent = 0;
};

bool take_sign(const char*& at, const char* end) {
  const bool negative = at != end && *at == '-';
  if (at != end && (*at == '-' || *at == '+')) ++at;
  return negative;
}

// One digit of the mantissa, before the point (`shift` 0) or behind it (-1).
void take_digit(Parts& parts, char c, int shift) {
  if (parts.digits >= kMostDigits) {
    ++parts.digits;  // dropped here; its presence sends the text to the careful way
    parts.exponent += 1 + shift;
    return;
  }
  parts.mantissa = parts.mantissa * 10 + static_cast<std::uint64_t>(c - '0');
  if (parts.mantissa != 0) ++parts.digits;  // zeros in front are no digits to keep
  parts.exponent += shift;
}

bool take_exponent(Parts& parts, const char*& at, const char* end) {
  if (at == end || (*at != 'e' && *at != 'E')) return true;
  ++at;
  const bool negative = take_sign(at, end);
  if (at == end || !is_digit(*at)) return false;
  int exponent = 0;
  for (; at != end && is_digit(*at); ++at) {
    if (exponent < kHugeExponent) exponent = exponent * 10 + (*at - '0');
  }
  parts.exponent += negative ? -exponent : exponent;
  return true;
}

bool split(const char* at, const char* end, Parts& parts) {
  parts.negative = take_sign(at, end);
  bool any = false;
  for (; at != end && is_digit(*at); ++at, any = true) take_digit(parts, *at, 0);
  if (at != end && *at == '.') {
    for (++at; at != end && is_digit(*at); ++at, any = true) take_digit(parts, *at, -1);
  }
  return any && take_exponent(parts, at, end) && at == end;
}

// Correctly rounded, for what the exact way can't do. The text has been checked to be a number.
double careful(const char* begin, const char* end, const Parts& parts) {
  if (begin != end && *begin == '+') ++begin;  // from_chars knows no plus
  double value = 0.0;
#if defined(__cpp_lib_to_chars)
  const std::from_chars_result result = std::from_chars(begin, end, value);
  if (result.ec == std::errc::result_out_of_range) {
    const double limit = parts.digits + parts.exponent > 0 ? HUGE_VAL : 0.0;
    value = parts.negative ? -limit : limit;
  }
#else
  (void)parts;
  value = std::strtod(std::string(begin, end).c_str(), nullptr);
#endif
  return value;
}

bool names_no_finite_number(std::string_view text) {
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  std::string lowered;
  for (const char c : text.substr(0, 9)) {
    lowered += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return lowered == "nan" || lowered == "inf" || lowered == "infinity";
}

}  // namespace

Decimal whole_number(const char* begin, const char* end, std::int64_t& value) {
  const bool negative = take_sign(begin, end);
  if (begin == end) return Decimal::kNotANumber;
  std::int64_t sum = 0;
  bool large = false;
  for (const char* at = begin; at != end; ++at) {
    if (!is_digit(*at)) return Decimal::kNotANumber;
    large = large || sum >= 100000000000000000;  // one digit more might not fit
    if (!large) sum = sum * 10 + (*at - '0');
  }
  value = negative ? -sum : sum;
  return large ? Decimal::kTooLarge : Decimal::kNumber;
}

Decimal real_number(const char* begin, const char* end, float& value) {
  Parts parts;
  if (!split(begin, end, parts)) {
    const std::string_view text(begin, static_cast<std::size_t>(end - begin));
    return names_no_finite_number(text) ? Decimal::kNotFinite : Decimal::kNotANumber;
  }
  double exact = 0.0;
  const bool plain = parts.digits <= kMostDigits && parts.mantissa <= kExactMantissa &&
                     parts.exponent >= -kExactPower && parts.exponent <= kExactPower;
  if (plain) {
    // Two exact doubles: their product or quotient is rounded once, and so correctly.
    exact = static_cast<double>(parts.mantissa);
    exact = parts.exponent < 0 ? exact / kPowers[-parts.exponent] : exact * kPowers[parts.exponent];
    if (parts.negative) exact = -exact;
  } else {
    exact = careful(begin, end, parts);
  }
  value = static_cast<float>(exact);
  return std::isfinite(value) ? Decimal::kNumber : Decimal::kTooLarge;
}

}  // namespace mh
