// Which instruction set runs: the best this machine has, or the one a test asks for.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernel_table.h"

namespace mh {

// The table in use. Plans take it when they are finished, so a later change does not touch them.
const KernelTable& kernels();

// What this machine can run, best first; "portable" is always last.
std::vector<const KernelTable*> available_kernels();

// Throws std::invalid_argument for a name that is unknown or not available here.
void use_kernels(const std::string& name);

}  // namespace mh
