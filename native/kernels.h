// Gathers every kernel of the instruction set MH_ISA into a table.
#pragma once

#include "kernel_table.h"
#include "update.h"

namespace mh::MH_ISA {

// Evaluated by the compiler: code in this file must not run before the machine was asked about it.
constexpr KernelTable make_table(const char* name) {
  KernelTable table{};
  table.name = name;
  table.lanes = kLanes;
  table.update = &update;
  table.squared_norm = &squared_norm;
  table.average = &average;
  return table;
}

}  // namespace mh::MH_ISA
