#!/bin/sh
# Builds the stand-alone test programs under each sanitizer, then runs them all beside each other;
# fails on the first report of each.
# Usage: native/tests/sanitize.sh [build directory, default build/sanitize]
set -eu
source=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$source/build/sanitize}
# Kernels that can't run here need not be compiled: they take the longest.
if grep -qs avx512vl /proc/cpuinfo; then avx512=ON; else avx512=OFF; fi

compile() {  # compile NAME SANITIZER OPTIONS...
  directory=$build/$1 sanitizer=$2
  shift 2
  echo "== compiling for the $sanitizer sanitizer"
  cmake -S "$source" -B "$directory" -DMANYHANDS_MODULE=OFF -DMANYHANDS_TESTS=ON \
    -DMANYHANDS_SANITIZE="$sanitizer" -DCMAKE_BUILD_TYPE=Release "$@" >/dev/null
  cmake --build "$directory" --parallel "$(getconf _NPROCESSORS_ONLN)"
}

run() {  # run NAME PROGRAM ARGUMENTS...
  log=$build/$1-$2${3:+-$3}.log
  if "$build/$1/native/tests/$2" ${3:+"$3"} >"$log" 2>&1; then outcome=ok; else outcome=FAILED; fi
  echo "== $1: $2${3:+ $3}: $outcome"
  [ $outcome = ok ] || { cat "$log"; return 1; }
}

# Vectors as wide as AVX-512's reach furthest over a row's end, on any machine. Which threads touch
# what is the same with every kind of vector.
compile address address,undefined -DMANYHANDS_AVX512=$avx512 -DMANYHANDS_PORTABLE_LANES=16
compile thread thread -DMANYHANDS_VECTORS=OFF

export TSAN_OPTIONS="halt_on_error=1"
started=""
run address native_tests & started="$started $!"
run address native_tests shared & started="$started $!"
run address fuzz_frames 20000 & started="$started $!"
run thread native_tests & started="$started $!"
run thread fuzz_frames 3000 & started="$started $!"
TSAN_OPTIONS="$TSAN_OPTIONS suppressions=$source/native/tests/thread_sanitizer.supp" \
  run thread native_tests shared & started="$started $!"
failed=0
for program in $started; do wait "$program" || failed=1; done
exit $failed
