// The kernels compiled for avx512; the compiler flags are in CMakeLists.txt.
#define MH_ISA avx512
#include "kernels/kernels.h"

namespace mh {

extern const KernelTable k_table_avx512;
constexpr KernelTable k_table_avx512 = avx512::make_table("avx512");

}  // namespace mh
