#include "kernels/dispatch.h"

#include <atomic>
#include <stdexcept>

namespace mh {

extern const KernelTable k_table_portable;
#if MANYHANDS_X86
extern const KernelTable k_table_avx2;
#endif
#if MANYHANDS_AVX512
extern const KernelTable k_table_avx512;
#endif

namespace {

std::atomic<const KernelTable*>& current() {
  static std::atomic<const KernelTable*> table{available_kernels().front()};
  return table;
}

}  // namespace

std::vector<const KernelTable*> available_kernels() {
  std::vector<const KernelTable*> tables;
#if MANYHANDS_X86
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#if MANYHANDS_AVX512
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    tables.push_back(&k_table_avx512);
  }
#endif
  if (avx2) tables.push_back(&k_table_avx2);
#endif
  tables.push_back(&k_table_portable);
  return tables;
}

const KernelTable& kernels() { return *current().load(std::memory_order_acquire); }

void use_kernels(const std::string& name) {
  std::string choices;
  for (const KernelTable* table : available_kernels()) {
    if (name == table->name) {
      current().store(table, std::memory_order_release);
      return;
    }
    choices += (choices.empty() ? "" : ", ") + std::string(table->name);
  }
  throw std::invalid_argument("The instruction set asked for is '" + name +
                              "'; this machine can run: " + choices + ".");
}

}  // namespace mh
