// Decimal text as numbers, without locales and without believing that it is a number.
#pragma once

#include <cstdint>

namespace mh {

enum class Decimal { kNumber, kNotANumber, kNotFinite, kTooLarge };

// [begin, end) as a whole number, with an optional sign. One that needs more than 18 digits is
// kTooLarge.
Decimal whole_number(const char* begin, const char* end, std::int64_t& value);

// [begin, end) as the float nearest to it: digits with an optional sign, point and exponent.
// kNotFinite for nan and inf however they are written; kTooLarge beyond what a float holds.
Decimal real_number(const char* begin, const char* end, float& value);

}  // namespace mh
