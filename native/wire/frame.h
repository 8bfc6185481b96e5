// The frame: a fixed header of 64 bytes, then a payload. docs/protocol.md says what each means.
//
// Both ends of the data plane and the Python side (manyhands/messages.py) share this layout. All
// numbers are little-endian; the struct is sent as it lies in memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mh::wire {

constexpr std::uint32_t kMagic = 0x5350484d;  // "MHPS" as it appears on the wire
constexpr std::uint16_t kVersion = 5;

enum class Kind : std::uint8_t {
  kHello = 1,
  kWelcome = 2,
  kRefused = 3,  // count: a Refusal; payload: one sentence, UTF-8
  kDelta = 4,    // dense values of one chunk, in one of the encodings
  kFactors = 5,  // a [count][in], then d [count][rows of the span]; see docs/protocol.md
  kRows = 6,     // count row numbers (u32, within the chunk), then count rows of floats
  kPull = 7,     // answered with kValues
  kAck = 8,      // seen: the chunk's version after the update
  kValues = 9,   // seen: the version of these values
  kSet = 10,     // count: which array (0 the weights, then the rule's states); payload: floats
  kGet = 11,     // count: which array; answered with kValues
  kAlign = 12,   // seen, place: where the primary stands; answered with kAck, count 1: so do I
  kSnapshot = 13,  // a whole copy of a chunk (server/snapshot.h); count: clients in its log
  kCall = 14,      // JSON, between Python ends (transport/calls.py)
  kAnswer = 15,
  kShare = 16,  // a primary to a copy on the same machine: read my payloads there (server/arena.h)
  kPullRows = 17,   // place, seen: an era and a version of it; answered with kRowValues or kValues
  kRowValues = 18,  // as kRows: the rows that changed since
};

enum Flag : std::uint8_t {
  kByReference = 1,  // the payload lies at `place` in the client's shared memory, not in the stream
  kWantValues = 2,   // answer an update with kValues instead of kAck
  kReplicated = 4,   // from the chunk's primary to a copy; seen, place: where the copy must stand
  kMayWait = 8,      // of a replicated Delta by reference: the copy may have it without applying it
};

// In the upper four bits of the flags.
enum class Encoding : std::uint8_t {
  kFloat32 = 0,
  kBfloat16 = 1,
  kInt8 = 2,  // a float scale for each block of 256 values, then the values
  kTopK = 3,  // count positions (u32, rising), then count floats
};

enum class Refusal : std::uint32_t {
  kUnknownChunk = 1,
  kWrongSize = 2,
  kNotFinite = 3,
  kStaleLease = 4,
  kWrongLane = 5,
  kMalformed = 6,   // the connection is closed after this one
  kTooLarge = 7,    // the connection is closed after this one
  kVersion = 8,     // of the protocol; both are named
  kStranger = 9,    // the run's token was not shown
  kNotAllowed = 10,
  kOutOfStep = 11,  // the copy does not stand where the update must be applied
};

struct Header {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint8_t kind = 0;
  std::uint8_t flags = 0;
  std::uint32_t chunk = 0;
  std::uint32_t lease = 0;     // of a client: 0 is no opinion
  std::uint64_t client = 0;
  std::uint64_t sequence = 0;  // rises with every update of a client to a chunk; replies repeat it
  std::uint64_t seen = 0;      // the chunk's version that an update was computed at
  float rate = 0.0f;           // the learning rate of an update
  std::uint32_t count = 0;
  std::uint32_t steps = 0;  // training steps that an update sums up; of Set and of Values: updates
  std::uint32_t payload_bytes = 0;
  std::uint64_t place = 0;
};
static_assert(sizeof(Header) == 64, "the header is sent as it lies in memory");
static_assert(offsetof(Header, client) == 16 && offsetof(Header, rate) == 40, "no hidden padding");

constexpr std::size_t kInt8Block = 256;

inline Encoding encoding_of(std::uint8_t flags) { return static_cast<Encoding>(flags >> 4); }
inline std::uint8_t with_encoding(std::uint8_t flags, Encoding encoding) {
  return static_cast<std::uint8_t>(flags | (static_cast<std::uint8_t>(encoding) << 4));
}

}  // namespace mh::wire
