// A lane: one thread that owns its chunks outright and serves the connections that lead to it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "server/apply.h"
#include "server/batcher.h"
#include "server/connection.h"
#include "server/lane_context.h"

namespace mh::server {

// A connection on its way to a lane; owns the socket until the lane takes it.
struct Adopted {
  int fd;
  Sender sender;
  ClientMemory memory;
};

class Lane {
 public:
  Lane(std::uint32_t number, const ServerSettings& settings, const Layout& layout);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Starts the thread, which takes these chunks (all of the layout's; it picks its own) and touches
  // their memory. Returns when it has.
  void start(const std::vector<ChunkStart>& starts, const std::vector<Place>& places,
             std::uint8_t* memory);
  void stop();

  // From any thread.
  void adopt(Adopted connection);
  void disconnect(std::uint64_t client);
  const Counters& counters() const { return counters_; }

 private:
  void run();
  void settle(const std::vector<ChunkStart>& starts, const std::vector<Place>& places,
              std::uint8_t* memory);

  void wait();
  int poll(int timeout_ms);
  bool spin();
  void receive(Connection& connection);
  void reply(Connection& connection);
  void join_round(Connection& connection);
  void end_round();

  void take_commands();
  void take_connection(Adopted adopted);
  void watch(Connection& connection, std::uint32_t events, int operation);
  void close_those_that_linger(std::int64_t now_ns);
  void wake();

  const std::uint32_t number_;
  const ServerSettings& settings_;
  const Layout& layout_;
  Counters counters_;
  ChunkStore store_;
  BlockPool pool_;
  LaneContext context_;
  std::unique_ptr<Batcher> batcher_;
  Applier applier_;

  int epoll_ = -1, wake_ = -1;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> round_;  // those that take part in this round
  std::vector<Connection*> more_;   // those with frames left for the next
  std::size_t lingering_ = 0;       // connections that were refused and whose peer may still read
  std::int64_t last_active_ns_ = 0;  // when the last round ended
  std::int64_t spin_from_ns_ = 0;    // until then the processor is busy with others
  std::int64_t last_wait_ns_ = 0;    // from the round before to its beginning

  std::thread thread_;
  std::atomic<bool> stopping_{false};
  std::mutex commands_mutex_;
  std::vector<Adopted> adopted_;
  std::vector<std::uint64_t> disconnected_;
};

}  // namespace mh::server
