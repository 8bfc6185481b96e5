// Walks over a model's flat arrays on their way between a replica's workers and the servers.
//
// Workers of the replica update `accumulated` and `local` while these walks run, without locks: an
// update that lands between a walk's load and its store is lost, which is one more source of noise
// to the network (Adam, section 3.2.2). Each vector is loaded and stored in one breath, to keep
// that window small, and a float is never torn on the machines we run on.
#pragma once

#include "kernels/vec.h"

namespace mh::MH_ISA {

// Calls `step(i, lanes)` for every vector of n floats; `lanes` < kLanes only for the last.
template <typename Step>
MH_INLINE void for_vectors(Index n, const Step& step) {
  Index i = 0;
  for (; i + kLanes <= n; i += kLanes) step(i, kLanes);
  if (i < n) step(i, n - i);
}

// outgoing += accumulated; accumulated = 0
inline void add_and_clear(Index n, float* accumulated, float* outgoing) {
  for_vectors(n, [=](Index i, Index lanes) {
    const Vec taken = load_upto(accumulated + i, lanes);
    store_upto(accumulated + i, lanes, zero());
    store_upto(outgoing + i, lanes, load_upto(outgoing + i, lanes) + taken);
  });
}

// staged = outgoing; outgoing = 0
inline void take(Index n, float* outgoing, float* staged) {
  for_vectors(n, [=](Index i, Index lanes) {
    const Vec taken = load_upto(outgoing + i, lanes);
    store_upto(outgoing + i, lanes, zero());
    store_upto(staged + i, lanes, taken);
  });
}

// out = base - local
inline void difference(Index n, const float* base, const float* local, float* out) {
  for_vectors(n, [=](Index i, Index lanes) {
    store_upto(out + i, lanes, load_upto(base + i, lanes) - load_upto(local + i, lanes));
  });
}

template <bool kSent>
void merge_with(Index n, float* local, float* base, const float* sent, const float* pulled) {
  for_vectors(n, [=](Index i, Index lanes) {
    const Vec news = load_upto(pulled + i, lanes);
    Vec known = load_upto(base + i, lanes);
    if (kSent) known = known - load_upto(sent + i, lanes);
    store_upto(base + i, lanes, news);
    store_upto(local + i, lanes, load_upto(local + i, lanes) + (news - known));
  });
}

// local += pulled - (base - sent); base = pulled. `sent` may be null: zeros.
inline void merge(Index n, float* local, float* base, const float* sent, const float* pulled) {
  sent ? merge_with<true>(n, local, base, sent, pulled)
       : merge_with<false>(n, local, base, sent, pulled);
}

}  // namespace mh::MH_ISA
