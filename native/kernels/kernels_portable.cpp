// The kernels compiled for portable; the compiler flags are in CMakeLists.txt.
#define MH_ISA portable
#include "kernels/kernels.h"

namespace mh {

extern const KernelTable k_table_portable;
constexpr KernelTable k_table_portable = portable::make_table("portable");

}  // namespace mh
