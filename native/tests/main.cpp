// Runs the kernels and plans without Python, for sanitizers: every size odd, every array exact.
//
//   native_tests           everything that must be free of races
//   native_tests shared    two threads on the same weights, which race on purpose
#include <cstdio>
#include <cstring>

#include "check.h"
#include "kernels/dispatch.h"

namespace mh::portable_vectors {
void check_vectors();
}
namespace mh::avx2_vectors {
void check_vectors();
}
namespace mh::avx512_vectors {  // emulated
void check_vectors();
}

static void test_vectors() {
  mh::portable_vectors::check_vectors();
#if MANYHANDS_X86
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return;
  mh::avx2_vectors::check_vectors();
  mh::avx512_vectors::check_vectors();
#endif
}

int main(int argc, char** argv) {
  const bool shared = argc > 1 && std::strcmp(argv[1], "shared") == 0;
  if (!shared) {
    test_vectors();
    mh::test::test_label_lines();
    mh::test::test_client();
    mh::test::test_server();
    mh::test::test_replication();
  }
  for (const mh::KernelTable* table : mh::available_kernels()) {
    mh::use_kernels(table->name);
    mh::test::test_two_threads(shared);
    if (shared) {
      mh::test::test_shared_values(*table);
      mh::test::test_racing_samples();
      mh::test::test_lsh_shared(*table);
    } else {
      mh::test::test_codec(*table);
      mh::test::test_flat(*table);
      mh::test::test_kernels(*table);
      mh::test::test_convolutions(*table);
      mh::test::test_plans(*table);
      mh::test::test_winograd(*table);
      mh::test::test_sparse_trainer();
      mh::test::test_lsh();
    }
    std::printf("%s%s: ok\n", table->name, shared ? ", shared weights" : "");
  }
  return 0;
}
