// The kernels compiled for avx2; the compiler flags are in CMakeLists.txt.
#define MH_ISA avx2
#include "kernels/kernels.h"

namespace mh {

extern const KernelTable k_table_avx2;
constexpr KernelTable k_table_avx2 = avx2::make_table("avx2");

}  // namespace mh
