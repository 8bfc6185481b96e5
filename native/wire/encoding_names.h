// The encodings by the names that users and callers from Python give them.
#pragma once

#include <stdexcept>
#include <string>

#include "frame.h"

namespace mh::wire {

inline Encoding encoding_named(const std::string& name) {
  if (name == "float32") return Encoding::kFloat32;
  if (name == "bfloat16") return Encoding::kBfloat16;
  if (name == "int8") return Encoding::kInt8;
  if (name == "topk") return Encoding::kTopK;
  throw std::invalid_argument("The encoding is '" + name +
                              "'; expected float32, bfloat16, int8 or topk.");
}

}  // namespace mh::wire
