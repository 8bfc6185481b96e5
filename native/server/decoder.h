// Checks a frame's header against the layout, before a byte of its payload is stored.
//
// A pure function over the header and tables that do not change: no sockets and no memory of its
// own, so that it can be fuzzed by itself (tests/fuzz_frames.cpp). Everything that is later used as
// a length or an index is compared here with what the layout says it must be.
#pragma once

#include <cstdint>
#include <string>

#include "server/layout.h"
#include "wire/frame.h"

namespace mh::server {

// A product of so many samples would still fit a payload where rows are short, but not its scratch.
constexpr std::uint32_t kMaxFactorSamples = 65536;

// Who sent a frame, as it was agreed when the connection was adopted.
struct Sender {
  std::uint64_t client = 0;
  std::uint32_t lane = 0;
  bool admin = false;
  std::uint64_t shared_bytes = 0;  // of the client's memory that payloads may lie in
  int peer = -1;  // the number of a server that sends us what its chunks' copies here are to take
};

enum class Action {
  kAccept,
  kSkip,   // refuse it, skip its payload, go on
  kClose,  // refuse it and close: where the next frame begins can't be known, or is too far away
};

struct Verdict {
  Action action = Action::kAccept;
  const ChunkShape* shape = nullptr;  // not null if accepted
  wire::Refusal refusal{};
  std::string sentence;  // for the sender, if refused
};

Verdict check(const wire::Header& header, const Sender& sender, const Layout& layout,
              std::uint64_t max_payload_bytes);

// Whether a frame carries a gradient, which must count once however often it is sent.
inline bool is_update(wire::Kind kind) {
  return kind == wire::Kind::kDelta || kind == wire::Kind::kFactors || kind == wire::Kind::kRows;
}
// Whether a frame asks for weights, of which it may name the version that it has.
inline bool is_pull(wire::Kind kind) {
  return kind == wire::Kind::kPull || kind == wire::Kind::kPullRows;
}
inline bool by_reference(const wire::Header& header) {
  return (header.flags & wire::kByReference) != 0;
}
// Whether a copy may have an update without applying it (backlog.h).
inline bool may_wait(const wire::Header& header) { return (header.flags & wire::kMayWait) != 0; }
// Whether a frame is from a chunk's primary to a copy of it.
inline bool is_replicated(const wire::Header& header) {
  const auto kind = static_cast<wire::Kind>(header.kind);
  return (header.flags & wire::kReplicated) != 0 || kind == wire::Kind::kAlign ||
         kind == wire::Kind::kSnapshot || kind == wire::Kind::kShare;
}
// Where a payload lies that a server shows to another: it follows the header, as `place` is taken.
using Reference = std::uint64_t;
// How many bytes follow the header in the stream.
inline std::size_t stream_bytes(const wire::Header& header) {
  if (!by_reference(header)) return header.payload_bytes;
  return is_replicated(header) ? sizeof(Reference) : 0;
}

}  // namespace mh::server
