// A lane: one thread that owns its chunks outright and serves the connections that lead to it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "server/apply.h"
#include "server/backlog.h"
#include "server/batcher.h"
#include "server/connection.h"
#include "server/follower.h"
#include "server/held_replies.h"
#include "server/lane_context.h"
#include "server/replication.h"
#include "server/watch.h"
#include "wire/spin.h"

namespace mh::server {

// A socket on its way to a lane; closed unless the lane takes it.
class Handed {
 public:
  explicit Handed(int fd) : fd_(fd) {}
  Handed(const Handed&) = delete;
  Handed& operator=(const Handed&) = delete;
  ~Handed() {
    if (fd_ >= 0) close(fd_);
  }
  int take() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

class Lane {
 public:
  Lane(std::uint32_t number, const ServerSettings& settings, const Layout& layout, Events& events);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Starts the thread, which takes these chunks (all of the layout's; it picks its own) and touches
  // their memory. Returns when it has.
  void start(const std::vector<ChunkStart>& starts, const std::vector<Place>& places,
             std::uint8_t* memory);
  void stop();

  // From any thread. What is asked for is done on the lane's thread, between two rounds and in the
  // order in which it was asked for; nothing is when the lane has ended.
  void adopt(int fd, const Sender& sender, ClientMemory memory);
  void hold(HoldOrder order);
  void adopt_peer(int fd, int peer);
  void drop_peer(int peer);
  void mute_peer(int peer, bool on);
  std::map<int, double> lagging();
  // Of a chunk that is held and whose version is above `since`, else none.
  std::vector<std::uint8_t> collect(std::uint32_t slot, std::int64_t since);
  // Throws std::invalid_argument for the primary's chunk and for what is no snapshot of this one.
  void restore(std::uint32_t slot, const std::uint8_t* snapshot, std::size_t bytes,
               std::uint32_t lease);
  const Counters& counters() const { return counters_; }

 private:
  void run();
  void settle(const std::vector<ChunkStart>& starts, const std::vector<Place>& places,
              std::uint8_t* memory);

  void wait();
  int poll(int timeout_ms);
  void receive(Connection& connection);
  void sort(Connection& connection);
  void reply(Connection& connection);
  void join_round(Connection& connection);
  void end_round();

  void post(std::function<void()> command);
  template <typename Work>
  auto ask(Work work);
  void take_commands();
  void take_connection(int fd, const Sender& sender, ClientMemory memory);
  template <typename Which>
  void close_connections(const Which& which);
  void watch(Connection& connection);
  void close_those_that_linger(std::int64_t now_ns);
  void wake();

  const std::uint32_t number_;
  const ServerSettings& settings_;
  const Layout& layout_;
  Counters counters_;
  ChunkStore store_;
  std::unique_ptr<Arena> arena_;
  BlockPool pool_;
  LaneContext context_;
  HeldReplies held_;
  Applier applier_;
  Follower follower_;
  Events& events_;
  std::unique_ptr<Batcher> batcher_;
  std::unique_ptr<Backlog> backlog_;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<Replication> replication_;

  int epoll_ = -1, wake_ = -1;
  std::vector<int> muted_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> round_;  // those that take part in this round
  std::vector<Connection*> more_;   // those with frames left for the next
  std::size_t lingering_ = 0;       // connections that were refused and whose peer may still read
  std::int64_t last_active_ns_ = 0;  // when the last round ended
  wire::Spin spin_;

  std::thread thread_;
  std::atomic<bool> stopping_{false};
  std::mutex commands_mutex_;
  std::vector<std::function<void()>> commands_;
  bool ended_ = false;
};

}  // namespace mh::server
