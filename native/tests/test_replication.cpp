// Two chunk servers that are each other's copies, under many hands at once: clients push to both
// while their connections break and come back, roles are given again and others watch. Nothing may
// race, and every push counts once on both.
#include <atomic>
#include <chrono>
#include <thread>

#include "check.h"
#include "raw_frames.h"
#include "server/server.h"
#include "server/snapshot.h"

namespace mh::test {
namespace {

using server::ChunkServer;
using server::Role;
using wire::Kind;

constexpr std::uint32_t kChunks = 4;  // 0 and 2 are the first server's, 1 and 3 the second's
constexpr std::size_t kFloats[kChunks] = {33, 33, 100'003, 100'003};
constexpr int kPushes = 25;

std::unique_ptr<ChunkServer> made() {
  server::ServerSettings settings;
  settings.replicated = true;
  auto server = std::make_unique<ChunkServer>(1, settings);
  for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    const auto floats = static_cast<std::uint32_t>(kFloats[chunk]);
    server->add_chunk({chunk, 0, chunk, 0, 1, floats, 0, 0}, {Rule("sgd", RuleSettings{}), {}});
  }
  server->start();
  return server;
}

struct Pair {
  std::unique_ptr<ChunkServer> servers[2] = {made(), made()};

  void hold() {
    for (int i = 0; i < 2; ++i) {
      const auto own = static_cast<std::uint32_t>(i);
      servers[i]->hold({own, own + 2}, {{}, Role::kPrimary, 1, {1 - i}, {}});
    }
  }
  // From each to the other; what was there before is closed.
  void join() {
    for (int i = 0; i < 2; ++i) {
      int ends[2];
      check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
      servers[1 - i]->adopt(ends[1], {0, 0, false, 0, i}, -1);
      servers[i]->adopt_peer(ends[0], 0, 1 - i);
    }
  }
};

// Until both hold every chunk: a copy does so when its primary has spoken to it.
void wait_for_copies(Pair& pair) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (const auto& server : pair.servers) {
    for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      while (server->collect(chunk, -1).empty()) {
        check(std::chrono::steady_clock::now() < deadline, "every copy is held in time");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }
}

int connect(ChunkServer& server, std::uint64_t client) {
  int ends[2];
  check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
  server.adopt(ends[1], {client, 0, false, 0}, -1);
  return ends[0];
}

void act_as_client(Pair& pair, std::uint64_t client) {
  const auto first = static_cast<std::uint32_t>(client % 2);
  ChunkServer& server = *pair.servers[first];
  for (std::uint64_t i = 1; i <= kPushes; ++i) {
    const int fd = connect(server, client);
    for (const std::uint32_t chunk : {first, first + 2}) {
      const Array ones(kFloats[chunk], 1.0f);
      const Bytes frame = frame_of(header_of(Kind::kDelta, chunk, client, i), ones.data(),
                                   ones.size() * sizeof(float));
      Answer answer;
      check(write_all(fd, frame.data(), frame.size()) && read_answer(fd, answer) &&
                answer.kind() == Kind::kAck && answer.header.sequence == i,
            "a push is acknowledged");
    }
    ::close(fd);
  }
}

void watch(Pair& pair, const std::atomic<bool>& done) {
  while (!done) {
    for (const auto& server : pair.servers) {
      (void)server->wait_events(0.001);
      check(server->totals().frames < 1'000'000, "statistics can be read at any time");
      check(server->lagging().size() <= 1, "there is one peer");
      for (const auto& held : server->progress()) check(held.version < 1000, "a version");
      check(!server->collect(2, -1).empty(), "a snapshot can be taken at any time");
    }
  }
}

void disturb(Pair& pair, const std::atomic<bool>& done) {
  for (int i = 0; !done; ++i) {
    if (i % 4 == 0) pair.servers[i % 2]->drop_peer(1 - i % 2);
    if (i % 4 == 1) pair.servers[i % 2]->mute_peer(1 - i % 2, true);
    pair.hold();
    pair.servers[0]->mute_peer(1, false);
    pair.servers[1]->mute_peer(0, false);
    pair.join();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void check_equal(Pair& pair) {
  for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    const Bytes first = pair.servers[0]->collect(chunk, -1);
    check(first == pair.servers[1]->collect(chunk, -1), "both have the same");
    float value;
    std::memcpy(&value, first.data() + sizeof(server::SnapshotHead), sizeof value);
    check(value == -0.5f * 2 * kPushes, "every push, once");
  }
}

}  // namespace

void test_replication() {
  Pair pair;
  pair.hold();
  pair.join();
  wait_for_copies(pair);
  std::atomic<bool> done{false};
  std::thread watcher([&] { watch(pair, done); }), disturber([&] { disturb(pair, done); });
  std::vector<std::thread> clients;
  for (std::uint64_t client = 0; client < 4; ++client) {
    clients.emplace_back([&pair, client] { act_as_client(pair, client); });
  }
  for (std::thread& client : clients) client.join();
  done = true;
  watcher.join();
  disturber.join();
  check_equal(pair);
  std::thread late([&] { (void)pair.servers[0]->wait_events(60.0); });
  for (const auto& server : pair.servers) server->stop();
  late.join();
  check(pair.servers[0]->totals().held_replies == 0, "nobody waits");
}

}  // namespace mh::test
