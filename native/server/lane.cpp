#include "server/lane.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <new>
#include <stdexcept>
#include <string>

#include "server/numa.h"
#include "system.h"

namespace mh::server {
namespace {

constexpr int kEvents = 64;
constexpr std::int64_t kLingerNs = 1'000'000'000;
constexpr std::int64_t kSpinNs = 40'000;
constexpr std::int64_t kBusyNs = 200'000'000;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Lane::Lane(std::uint32_t number, const ServerSettings& settings, const Layout& layout)
    : number_(number),
      settings_(settings),
      layout_(layout),
      pool_(2 * settings.max_payload_bytes + (std::size_t{8} << 20)),
      context_{settings_, layout_, store_, pool_, counters_},
      applier_(context_) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  if (epoll_ < 0 || wake_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) != 0) {
    throw std::runtime_error("A lane can't be made: " + std::string(std::strerror(errno)) + ".");
  }
}

Lane::~Lane() {
  stop();
  close(epoll_);
  close(wake_);
}

void Lane::start(const std::vector<ChunkStart>& starts, const std::vector<Place>& places,
                 std::uint8_t* memory) {
  std::promise<void> settled;
  std::future<void> ready = settled.get_future();
  thread_ = std::thread([&, this] {
    try {
      settle(starts, places, memory);
    } catch (...) {
      settled.set_exception(std::current_exception());
      return;
    }
    settled.set_value();
    run();
  });
  ready.get();
}

void Lane::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_release);
  wake();
  thread_.join();
  const std::lock_guard<std::mutex> lock(commands_mutex_);
  for (Adopted& adopted : adopted_) close(adopted.fd);
  adopted_.clear();
  connections_.clear();
  counters_.connections.set(0);
}

void Lane::settle(const std::vector<ChunkStart>& starts, const std::vector<Place>& places,
                  std::uint8_t* memory) {
  pthread_setname_np(pthread_self(), ("lane " + std::to_string(number_)).c_str());
  if (settings_.pin) pin_to_node_of(number_);
  flush_denormals();
  const std::vector<ChunkShape>& chunks = layout_.chunks();
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].lane == number_) store_.add(chunks[i], starts[i], places[i], memory);
  }
  batcher_ = std::make_unique<Batcher>(context_);
}

// The life of an update, from top to bottom.
void Lane::run() {
  while (!stopping_.load(std::memory_order_acquire)) {
    wait();
    const std::int64_t began = now_ns();
    last_wait_ns_ = began - last_active_ns_;
    for (Connection* c : round_) receive(*c);                                  // 1 receiver.h
    for (Connection* c : round_) {
      for (const Frame& frame : c->receiver.frames()) batcher_->add(*c, frame);  // 2 batcher.h
    }
    applier_.apply(*batcher_);                                                 // 3 apply.h
    for (Connection* c : round_) reply(*c);                                    // 4 replies.h
    end_round();
    last_active_ns_ = now_ns();
    counters_.rounds.add();
    counters_.busy_ns.add(static_cast<std::uint64_t>(last_active_ns_ - began));
  }
}

// Fills the round with the connections that have something to say or to take.
void Lane::wait() {
  for (Connection* c : more_) join_round(*c);
  more_.clear();
  if (!round_.empty()) return void(poll(0));
  if (spin()) return;
  poll(lingering_ > 0 ? 100 : -1);
}

// While requests follow each other closely, sleeping and being woken costs more than the work. Ends
// with the first pause, and for a while when another thread took the processor that was offered to
// it: a lane that sleeps is woken sooner than one that waits for its turn again.
bool Lane::spin() {
  std::int64_t now = last_active_ns_;
  if (last_wait_ns_ > kSpinNs || now < spin_from_ns_) return false;
  for (const std::int64_t until = now + kSpinNs; now < until;) {
    if (poll(0) > 0) return true;
    sched_yield();
    const std::int64_t back = now_ns();
    if (back - now > kSpinNs) spin_from_ns_ = back + kBusyNs;
    now = back;
  }
  return false;
}

int Lane::poll(int timeout_ms) {
  epoll_event events[kEvents];
  const int count = epoll_wait(epoll_, events, kEvents, timeout_ms);
  for (int i = 0; i < count; ++i) {
    auto* connection = static_cast<Connection*>(events[i].data.ptr);
    if (!connection) {
      take_commands();
      continue;
    }
    if (events[i].events & EPOLLERR) connection->dead = true;
    join_round(*connection);
  }
  return count;
}

void Lane::join_round(Connection& connection) {
  if (connection.in_round) return;
  connection.in_round = true;
  round_.push_back(&connection);
}

void Lane::receive(Connection& connection) {
  if (connection.blocked || connection.dead) return;
  try {
    connection.receiver.receive();
  } catch (const std::bad_alloc&) {
    connection.dead = true;  // its payload is the one that no memory is left for
  }
}

void Lane::reply(Connection& connection) {
  connection.receiver.release();
  if (connection.dead) return;
  const Sent sent = connection.replies.send(connection.fd());
  if (sent == Sent::kBroken) connection.dead = true;
  const bool blocked = sent == Sent::kBlocked;
  if (blocked && !connection.blocked) {
    counters_.blocked_replies.add();
    watch(connection, EPOLLOUT, EPOLL_CTL_MOD);
  }
  if (!blocked && connection.blocked) watch(connection, EPOLLIN, EPOLL_CTL_MOD);
  connection.blocked = blocked;
  if (blocked || connection.dead) return;
  if (connection.receiver.closed()) connection.dead = true;
  if (connection.receiver.ending() && connection.ends_at_ns == 0) {
    // Closing at once would let bytes that are still to come wipe out the refusal on its way.
    shutdown(connection.fd(), SHUT_WR);
    connection.ends_at_ns = now_ns() + kLingerNs;
    ++lingering_;
  }
  if (connection.receiver.more()) more_.push_back(&connection);
}

void Lane::end_round() {
  if (lingering_ > 0) close_those_that_linger(now_ns());
  bool any_dead = false;
  for (Connection* c : round_) {
    c->in_round = false;
    any_dead |= c->dead;
  }
  round_.clear();
  if (!any_dead) return;
  more_.erase(std::remove_if(more_.begin(), more_.end(), [](Connection* c) { return c->dead; }),
              more_.end());
  const auto gone = std::partition(connections_.begin(), connections_.end(),
                                   [](const auto& c) { return !c->dead; });
  for (auto at = gone; at != connections_.end(); ++at) lingering_ -= (*at)->ends_at_ns != 0;
  connections_.erase(gone, connections_.end());
  counters_.connections.set(connections_.size());
}

void Lane::close_those_that_linger(std::int64_t now) {
  for (const auto& c : connections_) {
    if (c->ends_at_ns == 0 || now < c->ends_at_ns) continue;
    c->dead = true;
    join_round(*c);
  }
}

void Lane::take_commands() {
  std::uint64_t count;
  while (read(wake_, &count, sizeof count) > 0) {
  }
  std::vector<Adopted> adopted;
  std::vector<std::uint64_t> disconnected;
  {
    const std::lock_guard<std::mutex> lock(commands_mutex_);
    adopted.swap(adopted_);
    disconnected.swap(disconnected_);
  }
  for (Adopted& a : adopted) take_connection(std::move(a));
  for (const auto& c : connections_) {
    const std::uint64_t client = c->receiver.sender().client;
    if (std::find(disconnected.begin(), disconnected.end(), client) == disconnected.end()) continue;
    c->dead = true;
    join_round(*c);
  }
}

void Lane::take_connection(Adopted adopted) {
  const int on = 1;  // fails on a unix socket, which needs none
  (void)setsockopt(adopted.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  connections_.push_back(std::make_unique<Connection>(adopted.fd, adopted.sender,
                                                      std::move(adopted.memory), context_));
  watch(*connections_.back(), EPOLLIN, EPOLL_CTL_ADD);
  counters_.connections.set(connections_.size());
}

void Lane::watch(Connection& connection, std::uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &connection;
  if (epoll_ctl(epoll_, operation, connection.fd(), &event) == 0) return;
  connection.dead = true;
  join_round(connection);
}

void Lane::adopt(Adopted connection) {
  {
    const std::lock_guard<std::mutex> lock(commands_mutex_);
    adopted_.push_back(std::move(connection));
  }
  wake();
}

void Lane::disconnect(std::uint64_t client) {
  {
    const std::lock_guard<std::mutex> lock(commands_mutex_);
    disconnected_.push_back(client);
  }
  wake();
}

void Lane::wake() {
  const std::uint64_t one = 1;
  (void)!write(wake_, &one, sizeof one);
}

}  // namespace mh::server
