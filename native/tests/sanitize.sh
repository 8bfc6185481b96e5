#!/bin/sh
# Builds the stand-alone test programs under each sanitizer and runs them; fails on the first
# report.
# Usage: native/tests/sanitize.sh [build directory, default build/sanitize]
set -eu
source=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$source/build/sanitize}
# Kernels that can't run here need not be compiled: they take the longest.
if grep -qs avx512vl /proc/cpuinfo; then avx512=ON; else avx512=OFF; fi
for sanitizer in address,undefined thread; do
  # Vectors as wide as AVX-512's reach furthest over a row's end, on any machine.
  if [ "$sanitizer" = thread ]; then lanes=4 inputs=3000; else lanes=16 inputs=20000; fi
  directory=$build/$(echo "$sanitizer" | tr , -)
  cmake -S "$source" -B "$directory" -DMANYHANDS_MODULE=OFF -DMANYHANDS_TESTS=ON \
    -DMANYHANDS_AVX512=$avx512 -DMANYHANDS_PORTABLE_LANES=$lanes \
    -DMANYHANDS_SANITIZE="$sanitizer" -DCMAKE_BUILD_TYPE=Release >/dev/null
  cmake --build "$directory" --parallel 2
  echo "== $sanitizer"
  tests=$directory/native/tests/native_tests
  TSAN_OPTIONS="halt_on_error=1" "$tests"
  TSAN_OPTIONS="halt_on_error=1 suppressions=$source/native/tests/thread_sanitizer.supp" \
    "$tests" shared
  TSAN_OPTIONS="halt_on_error=1" "$directory/native/tests/fuzz_frames" "$inputs"
done
