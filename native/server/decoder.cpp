#include "server/decoder.h"

#include <cmath>

#include "server/snapshot.h"
#include "wire/codec.h"

namespace mh::server {
namespace {

using wire::Encoding;
using wire::Header;
using wire::Kind;
using wire::Refusal;

std::string text(std::uint64_t number) { return std::to_string(number); }

Verdict refuse(Action action, Refusal refusal, std::string sentence) {
  return {action, nullptr, refusal, std::move(sentence)};
}
Verdict skip(Refusal refusal, std::string sentence) {
  return refuse(Action::kSkip, refusal, std::move(sentence));
}

bool is_request(Kind kind) {
  return is_update(kind) || is_pull(kind) || kind == Kind::kSet || kind == Kind::kGet ||
         kind == Kind::kAlign || kind == Kind::kSnapshot || kind == Kind::kShare;
}

// A snapshot has the size that the layout says, however large, and only other servers may send it.
bool is_bounded_otherwise(const Header& h, const Sender& sender) {
  return static_cast<Kind>(h.kind) == Kind::kSnapshot && sender.peer >= 0;
}

// Is this a frame at all, and may its payload be read? After a No the stream can't be followed.
Verdict check_frame(const Header& h, const Sender& sender, std::uint64_t max_payload_bytes) {
  if (h.magic != wire::kMagic) {
    return refuse(Action::kClose, Refusal::kMalformed, "The bytes received are no frame.");
  }
  if (h.version != wire::kVersion) {
    return refuse(Action::kClose, Refusal::kVersion,
                  "The frame is of protocol version " + text(h.version) +
                      "; this server speaks version " + text(wire::kVersion) + ".");
  }
  if (!is_request(static_cast<Kind>(h.kind))) {
    return refuse(Action::kClose, Refusal::kMalformed,
                  "A server takes no frames of kind " + text(h.kind) + ".");
  }
  if (h.flags >> 4 > 3) {
    return refuse(Action::kClose, Refusal::kMalformed,
                  "The frame's flags " + text(h.flags) + " are unknown.");
  }
  if (h.payload_bytes > max_payload_bytes && !is_bounded_otherwise(h, sender)) {
    return refuse(Action::kClose, Refusal::kTooLarge,
                  "The payload has " + text(h.payload_bytes) + " bytes; at most " +
                      text(max_payload_bytes) + " are taken.");
  }
  return {};
}

Verdict check_replicated(const Header& h, const Sender& sender) {
  const auto kind = static_cast<Kind>(h.kind);
  if (kind == Kind::kShare) return {};
  if (h.lease == 0 || is_pull(kind) || kind == Kind::kGet) {
    return skip(Refusal::kNotAllowed, "What copies are to take is an update, under a lease.");
  }
  if (may_wait(h) && (kind != Kind::kDelta || !by_reference(h))) {
    return skip(Refusal::kNotAllowed, "Only an update that is shown may wait.");
  }
  if (by_reference(h) && h.payload_bytes > sender.shared_bytes) {
    return skip(Refusal::kWrongSize, "A payload of " + text(h.payload_bytes) +
                                         " bytes is not in the memory that the server shares.");
  }
  return {};
}

Verdict check_sender(const Header& h, const Sender& sender) {
  const auto kind = static_cast<Kind>(h.kind);
  if (is_replicated(h) != (sender.peer >= 0)) {
    return skip(Refusal::kNotAllowed, sender.peer >= 0
                                          ? "A server sends others what their copies are to take."
                                          : "Only a server may send what copies are to take.");
  }
  if (sender.peer >= 0) return check_replicated(h, sender);
  if (may_wait(h)) return skip(Refusal::kNotAllowed, "A client's update may not wait.");
  if (h.client != sender.client) {
    return skip(Refusal::kNotAllowed, "The frame names client " + text(h.client) +
                                          "; this connection belongs to client " +
                                          text(sender.client) + ".");
  }
  if ((kind == Kind::kSet || kind == Kind::kGet) && !sender.admin) {
    return skip(Refusal::kNotAllowed, "Only an administrator's connection may set or get arrays.");
  }
  if (!by_reference(h)) return {};
  if (h.place > sender.shared_bytes || h.payload_bytes > sender.shared_bytes - h.place) {
    return skip(Refusal::kWrongSize, "A payload of " + text(h.payload_bytes) + " bytes at " +
                                         text(h.place) + " is not inside the " +
                                         text(sender.shared_bytes) +
                                         " bytes that the client shares.");
  }
  return {};
}

Verdict check_place(const Header& h, const ChunkShape* shape, const Sender& sender) {
  if (!shape) {
    return skip(Refusal::kUnknownChunk, "This server does not hold chunk " + text(h.chunk) + ".");
  }
  if (shape->lane != sender.lane) {
    return skip(Refusal::kWrongLane, "Chunk " + text(h.chunk) + " lives on lane " +
                                         text(shape->lane) + "; this connection leads to lane " +
                                         text(sender.lane) + ".");
  }
  return {};
}

Verdict expect_bytes(const Header& h, std::uint64_t expected) {
  if (h.payload_bytes == expected) return {};
  return skip(Refusal::kWrongSize, "The payload for chunk " + text(h.chunk) + " has " +
                                       text(h.payload_bytes) + " bytes; expected " +
                                       text(expected) + ".");
}

Verdict check_delta(const Header& h, const ChunkShape& shape) {
  const Encoding encoding = wire::encoding_of(h.flags);
  if (encoding == Encoding::kTopK && h.count > shape.floats()) {
    return skip(Refusal::kWrongSize, "The update names " + text(h.count) +
                                         " positions; chunk " + text(h.chunk) + " has " +
                                         text(shape.floats()) + ".");
  }
  return expect_bytes(h, wire::encoded_bytes(encoding, shape.floats(), h.count));
}

Verdict check_factors(const Header& h, const ChunkShape& shape) {
  const Encoding encoding = wire::encoding_of(h.flags);
  if (shape.span_rows == 0) {
    return skip(Refusal::kUnknownChunk, "Chunk " + text(h.chunk) + " is not the first of a span.");
  }
  if (h.count == 0 || h.count > kMaxFactorSamples) {
    return skip(Refusal::kWrongSize, "The factors have " + text(h.count) +
                                         " samples; expected 1 to " + text(kMaxFactorSamples) +
                                         ".");
  }
  if (encoding != Encoding::kFloat32 && encoding != Encoding::kBfloat16) {
    return skip(Refusal::kWrongSize, "Factors travel as float32 or bfloat16.");
  }
  const std::uint64_t number_bytes = encoding == Encoding::kFloat32 ? 4 : 2;
  const std::uint64_t sample = std::uint64_t{shape.row_floats} + shape.span_rows;
  return expect_bytes(h, number_bytes * h.count * sample);
}

Verdict check_rows(const Header& h, const ChunkShape& shape) {
  if (wire::encoding_of(h.flags) != Encoding::kFloat32) {
    return skip(Refusal::kWrongSize, "Rows travel as float32.");
  }
  return expect_bytes(h, std::uint64_t{h.count} * (4 + 4 * std::uint64_t{shape.row_floats}));
}

Verdict check_array(const Header& h, const ChunkShape& shape) {
  if (h.count > shape.states || wire::encoding_of(h.flags) != Encoding::kFloat32) {
    return skip(Refusal::kWrongSize, "Array " + text(h.count) + " of chunk " + text(h.chunk) +
                                         " was asked for; it has 0 to " + text(shape.states) +
                                         ", as float32.");
  }
  const bool set = static_cast<Kind>(h.kind) == Kind::kSet;
  return expect_bytes(h, set ? 4 * shape.floats() : 0);
}

Verdict check_pull(const Header& h) {
  if (wire::encoding_of(h.flags) == Encoding::kTopK) {
    return skip(Refusal::kWrongSize, "Values are sent as float32, bfloat16 or int8.");
  }
  return expect_bytes(h, 0);
}

Verdict check_snapshot(const Header& h, const ChunkShape& shape) {
  if (h.count > SequenceLog::kMaxClients) {
    return skip(Refusal::kWrongSize, "A snapshot names " + text(h.count) +
                                         " clients; at most " + text(SequenceLog::kMaxClients) +
                                         " are known.");
  }
  return expect_bytes(h, snapshot_bytes(shape, h.count));
}

// Concerns no chunk; any one stands for it.
Verdict check_share(const Header& h, const Layout& layout) {
  if (layout.chunks().empty()) return skip(Refusal::kUnknownChunk, "There are no chunks here.");
  Verdict verdict = expect_bytes(h, 0);
  if (verdict.action == Action::kAccept) verdict.shape = &layout.chunks().front();
  return verdict;
}

Verdict check_contents(const Header& h, const ChunkShape& shape) {
  const auto kind = static_cast<Kind>(h.kind);
  if (is_update(kind) && !std::isfinite(h.rate)) {
    return skip(Refusal::kNotFinite, "The update's learning rate is not a finite number.");
  }
  switch (kind) {
    case Kind::kDelta:
      return check_delta(h, shape);
    case Kind::kFactors:
      return check_factors(h, shape);
    case Kind::kRows:
      return check_rows(h, shape);
    case Kind::kPull:
    case Kind::kPullRows:
      return check_pull(h);
    case Kind::kAlign:
      return expect_bytes(h, 0);
    case Kind::kSnapshot:
      return check_snapshot(h, shape);
    default:
      return check_array(h, shape);
  }
}

}  // namespace

Verdict check(const Header& header, const Sender& sender, const Layout& layout,
              std::uint64_t max_payload_bytes) {
  Verdict verdict = check_frame(header, sender, max_payload_bytes);
  if (verdict.action != Action::kAccept) return verdict;
  verdict = check_sender(header, sender);
  if (verdict.action != Action::kAccept) return verdict;
  if (static_cast<Kind>(header.kind) == Kind::kShare) return check_share(header, layout);
  const ChunkShape* shape = layout.find(header.chunk);
  verdict = check_place(header, shape, sender);
  if (verdict.action != Action::kAccept) return verdict;
  verdict = check_contents(header, *shape);
  verdict.shape = verdict.action == Action::kAccept ? shape : nullptr;
  return verdict;
}

}  // namespace mh::server
