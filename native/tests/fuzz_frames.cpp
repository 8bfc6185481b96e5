// Feeds a chunk server bytes that no client should send: the header check by itself, then a whole
// lane over a socket.
//
// LLVMFuzzerTestOneInput is libFuzzer's entry (build with clang -fsanitize=fuzzer and
// -DMANYHANDS_LIBFUZZER). The program by itself needs no libFuzzer: it mutates good frames from a
// seed, a fixed number of times:   fuzz_frames [inputs, default 20000] [seed, default 1]
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "random.h"
#include "raw_frames.h"
#include "server/decoder.h"
#include "server/row_changes.h"
#include "server/server.h"
#include "server/snapshot.h"
#include "wire/codec.h"

namespace mh::test {
namespace {

using server::ChunkServer;
using wire::Encoding;
using wire::Header;
using wire::Kind;

constexpr std::uint64_t kClient = 1;
constexpr std::uint64_t kMaxPayload = 1u << 18;
constexpr std::uint64_t kSharedBytes = 1u << 16;
constexpr int kLongestWaitMs = 60'000;
constexpr std::uint32_t kLease = 3;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::abort();
}

std::vector<server::ChunkShape> shapes() {
  std::vector<server::ChunkShape> made{
      {0, 0, 0, 0, 1, 100, 0, 0},      // plain
      {1, 0, 1, 0, 7, 10, 0, 1},       // a span of two chunks
      {2, 0, 1, 7, 5, 10, 0, 1},       //
      {3, 0, 2, 0, 40, 1000, 0, 2},    // larger than the inbox takes
      {4, 0, 3, 0, 3, 1, 9, 0},        // under another lease
      {5, 1, 4, 0, 1, 10, 0, 0},       // on another lane
  };
  for (const std::size_t chunk : {1, 3, 4}) made[chunk].by_rows = true;
  return made;
}

server::ChunkStart start_of(const server::ChunkShape& shape) {
  const char* const names[] = {"sgd", "adagrad", "adam"};
  return {Rule(names[shape.states], RuleSettings{}), std::vector<float>(shape.states, 0.1f)};
}

// A client, an administrator, another server.
const server::Sender kSenders[] = {{kClient, 0, false, kSharedBytes},
                                   {kClient, 0, true, kSharedBytes},
                                   {0, 0, false, 0, 1}};

// --- the header check by itself

void require_accepted_fits(const Header& h, const server::Sender& sender,
                           const server::ChunkShape& shape) {
  const bool snapshot = static_cast<Kind>(h.kind) == Kind::kSnapshot;
  require(h.payload_bytes <= kMaxPayload || snapshot, "an accepted payload is within the limit");
  require((h.client == sender.client || sender.peer >= 0) && shape.lane == sender.lane,
          "an accepted frame comes from whom and goes where it should");
  const bool share = static_cast<Kind>(h.kind) == Kind::kShare;
  require(server::is_replicated(h) == (sender.peer >= 0) &&
              (sender.peer < 0 || h.lease > 0 || share),
          "copies hear from servers alone, under a lease");
  if (server::by_reference(h) && sender.peer < 0) {
    require(h.place <= sender.shared_bytes && sender.shared_bytes - h.place >= h.payload_bytes,
            "an accepted place lies in the client's memory");
  }
  const std::uint64_t floats = shape.floats(), count = h.count;
  switch (static_cast<Kind>(h.kind)) {
    case Kind::kDelta:
      require(h.payload_bytes == wire::encoded_bytes(wire::encoding_of(h.flags), floats, count) &&
                  (wire::encoding_of(h.flags) != Encoding::kTopK || count <= floats),
              "an accepted delta has its chunk's size");
      break;
    case Kind::kFactors:
      require(count > 0 && shape.span_rows > 0 &&
                  h.payload_bytes >= 2 * count * (shape.row_floats + shape.span_rows),
              "accepted factors have their span's size");
      break;
    case Kind::kRows:
      require(h.payload_bytes == count * (4 + 4 * std::uint64_t{shape.row_floats}),
              "accepted rows have their size");
      break;
    case Kind::kSnapshot:
      require(h.payload_bytes == server::snapshot_bytes(shape, count) && count <= 256,
              "an accepted snapshot has its chunk's size");
      break;
    case Kind::kSet:
      require((sender.admin || sender.peer >= 0) && h.payload_bytes == 4 * floats &&
                  count <= shape.states,
              "an accepted array has its chunk's size");
      break;
    default:
      require(h.payload_bytes == 0, "an accepted question has no payload");
  }
}

void fuzz_check(const std::uint8_t* data, std::size_t size, const server::Layout& layout) {
  for (std::size_t at = 0; at + sizeof(Header) <= size; at += sizeof(Header)) {
    Header header;
    std::memcpy(&header, data + at, sizeof header);
    for (const server::Sender& sender : kSenders) {
      const server::Verdict verdict = server::check(header, sender, layout, kMaxPayload);
      const bool accepted = verdict.action == server::Action::kAccept;
      require(accepted == (verdict.shape != nullptr), "accepted frames have a chunk");
      require(accepted == verdict.sentence.empty(), "refused frames have a sentence");
      if (accepted) require_accepted_fits(header, sender, *verdict.shape);
    }
  }
}

// --- a whole lane

int shared_memory() {
  const int fd = memfd_create("fuzz", MFD_ALLOW_SEALING | MFD_CLOEXEC);
  require(fd >= 0 && ftruncate(fd, kSharedBytes) == 0 &&
              fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0,
          "memory for payloads by reference");
  return fd;
}

struct Target {
  server::Layout layout;
  std::unique_ptr<ChunkServer> servers[2];  // with and without the check for finite numbers
  std::unique_ptr<ChunkServer> primary, copy;
  int memory = shared_memory();

  Target() {
    for (const server::ChunkShape& shape : shapes()) layout.add(shape);
    layout.finish();
    for (int i = 0; i < 2; ++i) servers[i] = made(i == 0, false);
    renew();
  }
  ~Target() { close(memory); }

  // A copy that heard of a very high lease takes nothing any more: now and then there is another.
  void renew() {
    primary = made(true, true);
    copy = made(true, true);
    primary->hold(numbers(), {{}, server::Role::kPrimary, kLease, {1}, {}});
    join();
  }

  static std::unique_ptr<ChunkServer> made(bool refuse_nonfinite, bool replicated) {
    server::ServerSettings settings;
    settings.max_payload_bytes = kMaxPayload;
    settings.refuse_nonfinite = refuse_nonfinite;
    settings.replicated = replicated;
    auto server = std::make_unique<ChunkServer>(2, settings);
    for (const server::ChunkShape& shape : shapes()) server->add_chunk(shape, start_of(shape));
    server->start();
    return server;
  }

  std::vector<std::uint32_t> numbers() const {
    std::vector<std::uint32_t> out;
    for (const server::ChunkShape& shape : layout.chunks()) out.push_back(shape.chunk);
    return out;
  }

  // The primary's connection to the copy.
  void join() {
    for (std::uint32_t lane = 0; lane < 2; ++lane) {
      int ends[2];
      require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
      copy->adopt(ends[1], {0, lane, false, 0, 0}, -1);
      primary->adopt_peer(ends[0], lane, 1);
    }
  }
};

Target& target() {
  static Target made;
  return made;
}

// Sends the bytes, says that no more will come, and reads replies until the server hangs up.
void fuzz_lane(ChunkServer& server, const std::uint8_t* data, std::size_t size,
               const server::Sender& sender) {
  int ends[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
  server.adopt(ends[1], sender, sender.shared_bytes > 0 ? target().memory : -1);
  std::size_t sent = 0;
  static Bytes drained(1 << 16);
  for (bool open = true; open;) {
    pollfd ready{ends[0], static_cast<short>(sent < size ? POLLIN | POLLOUT : POLLIN), 0};
    require(poll(&ready, 1, kLongestWaitMs) == 1, "a server that is sent everything answers");
    if (ready.revents & POLLOUT) {
      const ssize_t now = send(ends[0], data + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      // Nothing more is taken from a connection that was refused.
      sent = now < 0 && errno != EAGAIN ? size : sent + static_cast<std::size_t>(now > 0 ? now : 0);
      if (sent == size) shutdown(ends[0], SHUT_WR);
    }
    const ssize_t got = recv(ends[0], drained.data(), drained.size(), MSG_DONTWAIT);
    open = got > 0 || (got < 0 && errno == EAGAIN);
  }
  close(ends[0]);
}

// Plays a copy that answers its primary with these bytes, and hangs up.
void fuzz_answers(ChunkServer& primary, const std::uint8_t* data, std::size_t size) {
  int ends[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
  primary.adopt_peer(ends[1], 0, 1);
  (void)!send(ends[0], data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  close(ends[0]);
}

}  // namespace
}  // namespace mh::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mh::test;
  if (size == 0) return 0;
  fuzz_check(data, size, target().layout);
  for (const auto& server : target().servers) {
    fuzz_lane(*server, data, size, kSenders[size % 2]);
  }
  fuzz_lane(*target().copy, data, size, kSenders[2]);
  // A primary whose copy never answers would keep its clients waiting: this one answers anything.
  fuzz_answers(*target().primary, data, size);
  static std::uint64_t inputs = 0, taken = 0;
  if (++inputs % 200 == 0) {
    taken += target().copy->totals().updates;
    require(taken > 0 || inputs < 5000, "a copy takes what is meant for it");
    target().renew();
  }
  return 0;
}

#ifndef MANYHANDS_LIBFUZZER
namespace mh::test {
namespace {

Bytes payload_of(Random& random, std::size_t bytes) {
  Bytes out(bytes);
  for (std::size_t i = 0; i + 4 <= bytes; i += 4) {
    const float value = static_cast<float>(random.next() % 2001) / 1000.0f - 1.0f;
    std::memcpy(out.data() + i, &value, sizeof value);
  }
  return out;
}

// The payload of a frame, with what of the header depends on it.
Bytes fill(Random& random, Header& h, const server::ChunkShape& shape) {
  const auto kind = static_cast<Kind>(h.kind);
  std::size_t bytes = 0;
  if (kind == Kind::kDelta) {
    const auto encoding = static_cast<Encoding>(random.next() % 4);
    h.flags = wire::with_encoding(h.flags, encoding);
    h.count = static_cast<std::uint32_t>(random.next() % (shape.floats() + 1));
    bytes = wire::encoded_bytes(encoding, shape.floats(), h.count);
  } else if (kind == Kind::kFactors) {
    h.count = 1 + random.next() % 20;
    bytes = std::size_t{4} * h.count * (shape.row_floats + shape.span_rows);
  } else if (kind == Kind::kRows) {
    h.count = random.next() % 10;
    bytes = std::size_t{h.count} * (4 + 4 * std::size_t{shape.row_floats});
  } else if (kind == Kind::kSet || kind == Kind::kGet) {
    h.count = random.next() % (shape.states + 1);
    bytes = kind == Kind::kSet ? 4 * shape.floats() : 0;
  } else if (kind == Kind::kSnapshot) {
    h.count = random.next() % 5;
    bytes = server::snapshot_bytes(shape, h.count);
  }
  Bytes payload = payload_of(random, bytes);
  if (kind == Kind::kRows) std::fill_n(payload.begin(), 4 * h.count, std::uint8_t{0});
  if (kind == Kind::kSnapshot) {
    const server::SnapshotHead head{random.next() % 4, random.next() % 4, kLease, 1 + shape.states,
                                    shape.floats(), h.count, 0};
    std::memcpy(payload.data(), &head, sizeof head);
  }
  return payload;
}

const server::ChunkShape& some_chunk(Random& random) {
  const std::vector<server::ChunkShape>& chunks = target().layout.chunks();
  return chunks[random.next() % chunks.size()];
}

// A frame that a server accepts from a client, of any kind.
Bytes clients_frame(Random& random) {
  static std::uint64_t sequence = 0;
  const server::ChunkShape& shape = some_chunk(random);
  const Kind kinds[] = {Kind::kDelta, Kind::kFactors, Kind::kRows, Kind::kPull, Kind::kSet,
                        Kind::kGet, Kind::kPullRows};
  Header h = header_of(kinds[random.next() % 7], shape.chunk, kClient, ++sequence);
  h.lease = random.next() % 2 ? shape.lease : 0;
  h.flags = random.next() % 4 == 0 ? wire::kWantValues : 0;
  if (static_cast<Kind>(h.kind) == Kind::kPullRows) {
    h.place = server::new_era() - 1 - random.next() % 40;  // drawn lately, by some chunk
    h.seen = random.next() % 20;
    h.flags = wire::with_encoding(h.flags, static_cast<Encoding>(random.next() % 3));
  }
  const Bytes payload = fill(random, h, shape);
  if (random.next() % 4 == 0 && !payload.empty() && payload.size() < kSharedBytes) {
    h.flags |= wire::kByReference;
    h.place = random.next() % (kSharedBytes - payload.size());
    Bytes frame = frame_of(h, payload.data(), payload.size());
    frame.resize(sizeof h);
    return frame;
  }
  return frame_of(h, payload.data(), payload.size());
}

// A frame from a primary to a copy; whether the copy is where it says is left to chance.
Bytes primarys_frame(Random& random) {
  const server::ChunkShape& shape = some_chunk(random);
  const Kind kinds[] = {Kind::kDelta, Kind::kFactors,  Kind::kRows, Kind::kSet,
                        Kind::kAlign, Kind::kSnapshot, Kind::kShare};
  Header h = header_of(kinds[random.next() % 7], shape.chunk, random.next() % 3, random.next() % 9);
  const auto kind = static_cast<Kind>(h.kind);
  h.lease = kLease;
  h.seen = random.next() % 4;
  h.place = random.next() % 2 ? kLease : 0;
  const bool update = kind == Kind::kDelta || kind == Kind::kFactors || kind == Kind::kRows ||
                      kind == Kind::kSet;
  h.flags = update ? wire::kReplicated : 0;
  const Bytes payload = fill(random, h, shape);
  return frame_of(h, payload.data(), payload.size());
}

// What a copy may answer.
Bytes copys_answer(Random& random) {
  const Kind kind = random.next() % 4 ? Kind::kAck : Kind::kRefused;
  Header h = header_of(kind, static_cast<std::uint32_t>(random.next() % 6), 0, 0);
  h.count = random.next() % 12;
  h.seen = random.next() % 4;
  const Bytes sentence(kind == Kind::kRefused ? random.next() % 20 : 0, 'x');
  return frame_of(h, sentence.data(), sentence.size());
}

Bytes good_frame(Random& random) {
  switch (random.next() % 4) {
    case 0:
      return copys_answer(random);
    case 1:
      return primarys_frame(random);
    default:
      return clients_frame(random);
  }
}

// Numbers at which lengths and counts go wrong.
std::uint32_t awkward(Random& random) {
  const std::uint32_t numbers[] = {0,      1,          3,          4,          63,        64,
                                   65,     0x7fffffff, 0x80000000, 0xffffffff, 0xfffffffc, 1u << 18,
                                   1u << 17, (1u << 18) + 1, 0x7f800000, 0x7fc00000};
  return numbers[random.next() % (sizeof numbers / sizeof *numbers)];
}

void mutate(Random& random, Bytes& bytes) {
  const std::size_t at = random.next() % bytes.size();
  switch (random.next() % 6) {
    case 0:
      bytes[at] ^= static_cast<std::uint8_t>(1u << (random.next() % 8));
      break;
    case 1:
      bytes[at] = static_cast<std::uint8_t>(random.next());
      break;
    case 2: {  // a field of the header, or four bytes of the payload
      const std::uint32_t number = awkward(random);
      const std::size_t field = random.next() % 3 ? at % sizeof(Header) / 4 * 4 : at / 4 * 4;
      if (field + 4 <= bytes.size()) std::memcpy(bytes.data() + field, &number, sizeof number);
      break;
    }
    case 3:
      bytes.resize(at + 1);
      break;
    case 4:
      bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), random.next() % 70, 0x5a);
      break;
    default:
      break;  // as it is
  }
}

Bytes input(Random& random) {
  Bytes out;
  const std::uint64_t frames = 1 + random.next() % 6;
  for (std::uint64_t i = 0; i < frames; ++i) {
    Bytes frame = good_frame(random);
    for (std::uint64_t times = random.next() % 3; times > 0; --times) mutate(random, frame);
    out.insert(out.end(), frame.begin(), frame.end());
  }
  return out;
}

void require_alive() {
  for (const auto& server : target().servers) {
    const server::Totals totals = server->totals();
    require(totals.waiting_bytes == 0, "no payload of a broken connection is kept");
    require(totals.updates > 0, "good frames among the bad were applied");
  }
  target().join();
  (void)target().primary->lagging();  // its lanes still answer
}

}  // namespace
}  // namespace mh::test

int main(int argc, char** argv) {
  using namespace mh::test;
  const long inputs = argc > 1 ? std::atol(argv[1]) : 20000;
  mh::Random random(argc > 2 ? static_cast<std::uint64_t>(std::atol(argv[2])) : 1);
  for (long i = 0; i < inputs; ++i) {
    const Bytes bytes = input(random);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  require_alive();
  std::printf("%ld inputs: ok\n", inputs);
  return 0;
}
#endif
