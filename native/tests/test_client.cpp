// A link against a small server in another thread: full buffers, odd sizes, bad ends.
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "check.h"
#include "client/link.h"
#include "wire/codec.h"

namespace mh::test {
namespace {

using client::Chunks;
using client::Link;
using wire::Encoding;
using wire::Header;
using wire::Kind;

void no_signals() {}

bool read_all(int fd, void* to, std::size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::recv(fd, at, bytes, 0);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_all(int fd, const void* from, std::size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

// Answers each request before it reads the next. A pull of chunk c is answered with c in every
// float; an update that wants values with what it decodes to.
void serve(int fd, std::size_t floats, bool lie) {
  Header request;
  while (read_all(fd, &request, sizeof request)) {
    std::vector<std::uint8_t> payload(request.payload_bytes);
    if (!read_all(fd, payload.data(), payload.size())) break;
    Array values(floats, static_cast<float>(request.chunk));
    Header reply;
    reply.kind = static_cast<std::uint8_t>(Kind::kAck);
    reply.chunk = request.chunk;
    reply.sequence = request.sequence;
    reply.seen = request.seen + 1;
    const bool pull = request.kind == static_cast<std::uint8_t>(Kind::kPull);
    if (!pull && !wire::decode(wire::encoding_of(request.flags), payload.data(), payload.size(),
                               floats, values.data())) {
      break;
    }
    if (pull || (request.flags & wire::kWantValues) != 0) {
      reply.kind = static_cast<std::uint8_t>(Kind::kValues);
      reply.payload_bytes = static_cast<std::uint32_t>(4 * floats + (lie ? 4 : 0));
    }
    if (!write_all(fd, &reply, sizeof reply)) break;
    if (reply.payload_bytes > 0 && !write_all(fd, values.data(), 4 * floats)) break;
  }
  ::shutdown(fd, SHUT_RDWR);
}

// A server in a thread, and a link to it; `count` chunks of `floats`.
struct Pair {
  Pair(std::size_t count, std::size_t floats, std::size_t window, bool lie = false)
      : numbers(count), starts(count), counts(count, static_cast<std::int64_t>(floats)),
        versions(count) {
    for (std::size_t i = 0; i < count; ++i) {
      numbers[i] = static_cast<std::uint32_t>(i + 5);
      starts[i] = static_cast<std::int64_t>(i * floats);
    }
    int ends[2];
    check(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    const int small = 4096;
    for (const int end : ends) ::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    server_fd = ends[1];
    link = std::make_unique<Link>(
        ends[0], client::LinkSettings{7, window, 20.0, {}, {}, &no_signals});
    server = std::thread([this, floats, lie] { serve(server_fd, floats, lie); });
  }
  ~Pair() {
    link.reset();
    server.join();
    ::close(server_fd);
  }
  Chunks chunks() {
    return {numbers.size(), numbers.data(), starts.data(), counts.data(), versions.data()};
  }

  std::vector<std::uint32_t> numbers;
  std::vector<std::int64_t> starts, counts, versions;
  int server_fd;
  std::unique_ptr<Link> link;
  std::thread server;
};

void test_pull(std::size_t count, std::size_t floats, std::size_t window) {
  Pair pair(count, floats, window);
  Array out(count * floats, -1.0f);
  pair.link->pull(pair.chunks(), out.data(), Encoding::kFloat32);
  for (std::size_t i = 0; i < out.size(); ++i) {
    check(out[i] == static_cast<float>(5 + i / floats), "values arrive where they belong");
  }
}

void test_push_pull(Encoding encoding, std::size_t count, std::size_t floats) {
  Pair pair(count, floats, 4);
  const Array values = random_array(static_cast<Index>(count * floats), 3);
  Array sent(values.size()), out(values.size());
  pair.link->push_pull(pair.chunks(), values.data(), sent.data(), out.data(), {0.1f, 1, 1},
                       {encoding, 0.3});
  check(out == sent, "what was sent is what the server decodes");
  for (const std::int64_t version : pair.versions) check(version == 1, "versions");
}

// The server dies after some chunks: what was carried out is told, the rest may be asked for again.
void test_outcomes() {
  Pair pair(6, 16, 1);
  std::vector<std::int8_t> outcomes(6, 9);
  const std::vector<std::uint32_t> leases(6, 3);
  client::Chunks chunks = pair.chunks();
  chunks.outcomes = outcomes.data();
  chunks.leases = leases.data();
  Array out(6 * 16);
  pair.link->pull(chunks, out.data(), Encoding::kFloat32);
  check(outcomes == std::vector<std::int8_t>(6, client::kCarriedOut), "all are carried out");
  ::shutdown(pair.server_fd, SHUT_RDWR);
  bool lost = false;
  try {
    pair.link->pull(chunks, out.data(), Encoding::kFloat32);
  } catch (const client::ConnectionLost&) {
    lost = true;
  }
  check(lost && outcomes == std::vector<std::int8_t>(6, client::kUnanswered), "none is answered");
}

template <typename Error>
bool throws(Pair& pair) {
  Array out(static_cast<std::size_t>(pair.counts[0]) * pair.counts.size());
  try {
    pair.link->pull(pair.chunks(), out.data(), Encoding::kFloat32);
  } catch (const Error&) {
    return true;
  }
  return false;
}

void test_bad_ends() {
  Pair liar(3, 33, 2, /*lie=*/true);
  check(throws<client::ConnectionLost>(liar), "an answer of the wrong size breaks the link");
  Pair dead(3, 33, 2);
  ::shutdown(dead.server_fd, SHUT_RDWR);
  check(throws<client::ConnectionLost>(dead), "a dead server breaks the link");
  check(throws<client::ConnectionLost>(dead), "for good");
}

void test_hanging_up() {
  int ends[2];
  check(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
  Link link(ends[0], client::LinkSettings{7, 1, 20.0, {}, {}, &no_signals});
  std::thread other([&] { link.hang_up(); });
  bool lost = false;
  float out = 0.0f;
  try {
    link.get({1, 0}, 0, &out, 1);
  } catch (const client::ConnectionLost&) {
    lost = true;
  }
  other.join();
  ::close(ends[1]);
  check(lost, "hanging up in another thread ends a call");
}

}  // namespace

void test_client() {
  for (const std::size_t window : {1u, 2u, 40u}) {
    test_pull(50, 3, window);
    test_pull(9, 4099, window);
  }
  for (const Encoding encoding :
       {Encoding::kFloat32, Encoding::kBfloat16, Encoding::kInt8, Encoding::kTopK}) {
    test_push_pull(encoding, 30, 7);
    test_push_pull(encoding, 7, 20011);
  }
  test_outcomes();
  test_bad_ends();
  test_hanging_up();
}

}  // namespace mh::test
