// A chunk server under many hands at once: pushes from several threads to two lanes while
// connections come, break and go, and another thread watches. Nothing here may race.
#include <thread>

#include "check.h"
#include "raw_frames.h"
#include "server/server.h"

namespace mh::test {
namespace {

using server::ChunkServer;
using wire::Kind;

constexpr std::uint32_t kSmall = 0, kLarge = 1, kMatrix = 2;
constexpr std::size_t kSmallFloats = 33, kLargeFloats = 100'003, kInputs = 17, kRows = 29;
constexpr int kRoundsPerClient = 12;

// Chunks of every size on each of two lanes; lane l holds numbers 10 l to 10 l + 3.
void add_chunks(ChunkServer& server) {
  const Rule plain("sgd", RuleSettings{}), adagrad("adagrad", RuleSettings{});
  for (std::uint32_t lane = 0; lane < 2; ++lane) {
    const std::uint32_t base = 10 * lane;
    server.add_chunk({base + kSmall, lane, base, 0, 1, kSmallFloats, 0, 0}, {plain, {}});
    server.add_chunk({base + kLarge, lane, base + 1, 0, 1, kLargeFloats, 0, 0}, {plain, {}});
    server.add_chunk({base + kMatrix, lane, base + 2, 0, 9, kInputs, 0, 1}, {adagrad, {0.1f}});
    server.add_chunk({base + kMatrix + 1, lane, base + 2, 9, kRows - 9, kInputs, 0, 1},
                     {adagrad, {0.1f}});
  }
}

int connect(ChunkServer& server, std::uint64_t client, std::uint32_t lane) {
  int ends[2];
  check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
  server.adopt(ends[1], {client, lane, false, 0}, -1);
  return ends[0];
}

void push(int fd, std::uint32_t chunk, std::uint64_t client, std::uint64_t sequence,
          const Array& gradient) {
  const Bytes frame = frame_of(header_of(Kind::kDelta, chunk, client, sequence), gradient.data(),
                               gradient.size() * sizeof(float));
  Answer answer;
  check(write_all(fd, frame.data(), frame.size()) && read_answer(fd, answer) &&
            answer.kind() == Kind::kAck && answer.header.sequence == sequence,
        "a push is acknowledged");
}

void push_factors(int fd, std::uint32_t chunk, std::uint64_t client, std::uint64_t sequence) {
  constexpr std::uint32_t kSamples = 3;
  const Array numbers = random_array(kSamples * (kInputs + kRows), sequence);
  wire::Header header = header_of(Kind::kFactors, chunk, client, sequence);
  header.count = kSamples;
  const Bytes frame = frame_of(header, numbers.data(), numbers.size() * sizeof(float));
  Answer answer;
  check(write_all(fd, frame.data(), frame.size()) && read_answer(fd, answer) &&
            answer.kind() == Kind::kAck,
        "factors are acknowledged");
}

Array pull(int fd, std::uint32_t chunk, std::uint64_t client) {
  const Bytes frame = frame_of(header_of(Kind::kPull, chunk, client, 0), nullptr, 0);
  Answer answer;
  check(write_all(fd, frame.data(), frame.size()) && read_answer(fd, answer) &&
            answer.kind() == Kind::kValues,
        "a pull is answered");
  Array values(answer.payload.size() / sizeof(float));
  std::memcpy(values.data(), answer.payload.data(), answer.payload.size());
  return values;
}

// Breaks off in the middle of a large push, as a machine that dies does.
void break_off(ChunkServer& server, std::uint64_t client, std::uint32_t lane,
               std::uint64_t sequence, const Array& gradient) {
  const int fd = connect(server, client, lane);
  const Bytes frame = frame_of(header_of(Kind::kDelta, 10 * lane + kLarge, client, sequence),
                               gradient.data(), gradient.size() * sizeof(float));
  write_all(fd, frame.data(), frame.size() * 2 / 3);
  ::close(fd);
}

void act_as_client(ChunkServer& server, std::uint64_t client) {
  const Array small(kSmallFloats, 1.0f), large(kLargeFloats, 1.0f);
  const auto lane = static_cast<std::uint32_t>(client % 2);
  const std::uint32_t base = 10 * lane;
  for (std::uint64_t i = 1; i <= kRoundsPerClient; ++i) {
    if (i % 3 == 0) break_off(server, client, lane, i, large);
    const int fd = connect(server, client, lane);
    push(fd, base + kSmall, client, i, small);
    push(fd, base + kLarge, client, i, large);
    push(fd, base + kLarge, client, i, large);  // again: applied once
    push_factors(fd, base + kMatrix, client, i);
    check(pull(fd, base + kSmall, client).size() == kSmallFloats, "the values of a small chunk");
    ::close(fd);
  }
}

void check_sums(ChunkServer& server, std::uint64_t clients_per_lane) {
  const float expected = -0.5f * static_cast<float>(kRoundsPerClient * clients_per_lane);
  for (std::uint32_t lane = 0; lane < 2; ++lane) {
    const int fd = connect(server, 100, lane);
    const Array small(kSmallFloats, expected), large(kLargeFloats, expected);
    check(close(pull(fd, 10 * lane + kSmall, 100), small, 1e-6f), "every small push, once");
    check(close(pull(fd, 10 * lane + kLarge, 100), large, 1e-6f), "every large push, once");
    ::close(fd);
  }
}

void serve(bool refuse_nonfinite) {
  server::ServerSettings settings;
  settings.refuse_nonfinite = refuse_nonfinite;
  ChunkServer server(2, settings);
  add_chunks(server);
  server.start();
  std::vector<std::thread> clients;
  for (std::uint64_t client = 0; client < 4; ++client) {
    clients.emplace_back([&server, client] { act_as_client(server, client); });
  }
  for (int i = 0; i < 50; ++i) {
    check(server.totals().frames < 1'000'000, "statistics can be read at any time");
    std::this_thread::yield();
  }
  for (std::thread& client : clients) client.join();
  check_sums(server, 2);
  check(server.totals().refused == decltype(server::Totals::refused){}, "nothing was refused");
  server.stop();
  check(server.totals().waiting_bytes == 0, "no payload is left behind");
}

}  // namespace

void test_server() {
  serve(true);
  serve(false);
}

}  // namespace mh::test
