#include "server/lane.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <new>
#include <stdexcept>
#include <string>

#include "server/clock.h"
#include "server/numa.h"
#include "server/snapshot.h"
#include "system.h"

namespace mh::server {
namespace {

constexpr int kEvents = 64;
constexpr std::int64_t kLingerNs = 1'000'000'000;
constexpr std::int64_t kSpinNs = 40'000;
constexpr std::size_t kArenaBytes = std::size_t{128} << 20;  // of addresses, for all payloads

void restore_chunk(Chunk& chunk, const std::uint8_t* snapshot, std::size_t bytes,
                   std::uint32_t lease) {
  const std::string name = "Chunk " + std::to_string(chunk.shape->chunk);
  if (chunk.role == Role::kPrimary || lease < chunk.lease) {
    throw std::invalid_argument(name + " is held under lease " + std::to_string(chunk.lease) +
                                "; it is restored before that, under lease " +
                                std::to_string(lease) + " it is too late.");
  }
  const auto head = read_head(*chunk.shape, snapshot, bytes);
  if (!head) throw std::invalid_argument(name + " can't be restored: this is no snapshot of it.");
  chunk.become(Role::kMirror, lease);
  restore(chunk, *head, snapshot);
}

}  // namespace

Lane::Lane(std::uint32_t number, const ServerSettings& settings, const Layout& layout,
           Events& events)
    : number_(number),
      settings_(settings),
      layout_(layout),
      pool_(2 * settings.max_payload_bytes + (std::size_t{8} << 20)),
      context_{settings_, layout_, store_, pool_, counters_},
      held_(context_),
      applier_(context_),
      follower_(context_, applier_),
      events_(events),
      spin_(kSpinNs) {
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
  std::vector<std::function<void()>> never_done;
  {
    const std::lock_guard<std::mutex> lock(commands_mutex_);
    ended_ = true;
    never_done.swap(commands_);
  }
  connections_.clear();
  if (replication_) replication_->close();
  counters_.connections.set(0);
}

void Lane::settle(const std::vector<ChunkStart>& starts, const std::vector<Place>& places,
                  std::uint8_t* memory) {
  pthread_setname_np(pthread_self(), ("lane " + std::to_string(number_)).c_str());
  if (settings_.pin) pin_to_node_of(number_);
  flush_denormals();
  const std::vector<ChunkShape>& chunks = layout_.chunks();
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const Role role = settings_.replicated ? Role::kNone : Role::kPrimary;
    if (chunks[i].lane == number_) store_.add(chunks[i], starts[i], places[i], memory, role);
  }
  batcher_ = std::make_unique<Batcher>(context_);
  backlog_ = std::make_unique<Backlog>(context_, applier_);
  watch_ = std::make_unique<Watch>(epoll_);
  replication_ = std::make_unique<Replication>(number_, context_, held_, *watch_, events_);
  if (settings_.replicated) {
    arena_ = std::make_unique<Arena>(2 * settings_.max_payload_bytes + kArenaBytes);
    pool_.use(arena_.get());
    context_.arena = arena_.get();
  }
  context_.held = &held_;
  context_.backlog = backlog_.get();
  context_.replication = replication_.get();
}

// The life of an update, from top to bottom.
void Lane::run() {
  while (!stopping_.load(std::memory_order_acquire)) {
    wait();
    const std::int64_t began = now_ns();
    spin_.note_wait(began - last_active_ns_);
    replication_->receive();                            // what copies answered: replication.h
    for (Connection* c : round_) receive(*c);           // 1 receiver.h
    for (Connection* c : round_) sort(*c);              // 2 batcher.h; for copies: follower.h
    follower_.finish();
    applier_.apply(*batcher_);                          // 3 apply.h
    replication_->flush();                              // to copies elsewhere: replication.h
    for (Connection* c : held_.take_ready()) join_round(*c);
    for (Connection* c : round_) reply(*c);             // 4 replies.h
    end_round();
    last_active_ns_ = now_ns();
    counters_.rounds.add();
    counters_.busy_ns.add(static_cast<std::uint64_t>(last_active_ns_ - began));
  }
}

void Lane::sort(Connection& connection) {
  for (const Frame& frame : connection.receiver.frames()) {
    if (connection.from_peer()) {
      follower_.add(connection, frame);
    } else {
      batcher_->add(connection, frame);
    }
  }
}

// Fills the round with the connections that have something to say or to take.
void Lane::wait() {
  for (Connection* c : more_) join_round(*c);
  more_.clear();
  if (!round_.empty()) return void(poll(0));
  if (spin_.until(last_active_ns_, [this] { return poll(0) > 0; })) return;
  poll(lingering_ > 0 ? 100 : -1);
}

int Lane::poll(int timeout_ms) {
  epoll_event events[kEvents];
  const int count = epoll_wait(epoll_, events, kEvents, timeout_ms);
  for (int i = 0; i < count; ++i) {
    auto* watched = static_cast<Watched*>(events[i].data.ptr);
    if (!watched) {
      take_commands();
    } else if (watched->to_peer) {
      replication_->ready(static_cast<Peer&>(*watched), events[i].events);
    } else if (!watched->muted) {
      // One that is not read from at the moment would say that it hung up again and again.
      const std::uint32_t ends = EPOLLERR | (watch_->events(*watched) == 0 ? EPOLLHUP : 0u);
      if (events[i].events & ends) watched->dead = true;
      join_round(static_cast<Connection&>(*watched));
    }
  }
  return count;
}

void Lane::join_round(Connection& connection) {
  if (connection.in_round) return;
  connection.in_round = true;
  round_.push_back(&connection);
}

void Lane::receive(Connection& connection) {
  if (connection.blocked || connection.dead || connection.muted || connection.full()) return;
  try {
    connection.receiver.receive();
  } catch (const std::bad_alloc&) {
    connection.dead = true;  // its payload is the one that no memory is left for
  }
}

void Lane::reply(Connection& connection) {
  connection.receiver.release();
  if (connection.dead || connection.muted) return;
  const Sent sent = connection.replies.send(connection.fd());
  if (sent == Sent::kBroken) connection.dead = true;
  const bool blocked = sent == Sent::kBlocked;
  if (blocked && !connection.blocked) counters_.blocked_replies.add();
  connection.blocked = blocked;
  watch(connection);
  if (blocked || connection.dead) return;
  if (connection.receiver.closed()) connection.dead = true;
  if (connection.receiver.ending() && connection.ends_at_ns == 0) {
    // Closing at once would let bytes that are still to come wipe out the refusal on its way.
    shutdown(connection.fd(), SHUT_WR);
    connection.ends_at_ns = now_ns() + kLingerNs;
    ++lingering_;
  }
  if (connection.receiver.more() && !connection.full()) more_.push_back(&connection);
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
  for (auto at = gone; at != connections_.end(); ++at) {
    lingering_ -= (*at)->ends_at_ns != 0;
    held_.forget(**at);
    if ((*at)->from_peer()) backlog_->apply_shown_by((*at)->receiver.sender().peer);
  }
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
  std::vector<std::function<void()>> commands;
  {
    const std::lock_guard<std::mutex> lock(commands_mutex_);
    commands.swap(commands_);
  }
  for (const std::function<void()>& command : commands) command();
}

void Lane::take_connection(int fd, const Sender& sender, ClientMemory memory) {
  const int on = 1;  // fails on a unix socket, which needs none
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // What is left of an older connection of the same server was overtaken by this one.
  close_connections([&](const Connection& c) {
    return sender.peer >= 0 && c.receiver.sender().peer == sender.peer;
  });
  connections_.push_back(std::make_unique<Connection>(fd, sender, std::move(memory), context_));
  Connection& made = *connections_.back();
  made.muted = std::find(muted_.begin(), muted_.end(), sender.peer) != muted_.end();
  watch(made);
  counters_.connections.set(connections_.size());
}

template <typename Which>
void Lane::close_connections(const Which& which) {
  for (const auto& c : connections_) {
    if (!which(*c)) continue;
    c->dead = true;
    join_round(*c);
  }
}

void Lane::watch(Connection& connection) {
  const auto reading = connection.full() ? 0u : static_cast<std::uint32_t>(EPOLLIN);
  watch_->set(connection, connection.blocked ? static_cast<std::uint32_t>(EPOLLOUT) : reading);
  if (connection.dead) join_round(connection);
}

void Lane::post(std::function<void()> command) {
  {
    const std::lock_guard<std::mutex> lock(commands_mutex_);
    if (ended_) return;
    commands_.push_back(std::move(command));
  }
  wake();
}

// Waits for the answer. Throws std::future_error if the lane ends before.
template <typename Work>
auto Lane::ask(Work work) {
  auto task = std::make_shared<std::packaged_task<decltype(work())()>>(std::move(work));
  auto answer = task->get_future();
  post([task] { (*task)(); });
  task.reset();
  return answer.get();
}

void Lane::adopt(int fd, const Sender& sender, ClientMemory memory) {
  auto handed = std::make_shared<Handed>(fd);
  auto shared = std::make_shared<ClientMemory>(std::move(memory));
  post([=] { take_connection(handed->take(), sender, std::move(*shared)); });
}

void Lane::hold(HoldOrder order) {
  post([this, order = std::move(order)] { replication_->hold(order); });
}

void Lane::adopt_peer(int fd, int peer) {
  auto handed = std::make_shared<Handed>(fd);
  post([=] { replication_->adopt(handed->take(), peer); });
}

void Lane::drop_peer(int peer) {
  post([=] {
    replication_->drop(peer);
    close_connections([=](const Connection& c) { return c.receiver.sender().peer == peer; });
  });
}

void Lane::mute_peer(int peer, bool on) {
  post([=] {
    muted_.erase(std::remove(muted_.begin(), muted_.end(), peer), muted_.end());
    if (on) muted_.push_back(peer);
    replication_->mute(peer, on);
    for (const auto& c : connections_) {
      if (c->receiver.sender().peer != peer) continue;
      c->muted = on;
      watch(*c);
      join_round(*c);  // frames that came before are taken up again
    }
  });
}

std::map<int, double> Lane::lagging() {
  return ask([this] { return replication_->lagging(); });
}

std::vector<std::uint8_t> Lane::collect(std::uint32_t slot, std::int64_t since) {
  return ask([=] {
    Chunk& chunk = store_.at(slot);
    backlog_->take_posted(chunk);
    const bool wanted = chunk.role != Role::kNone &&
                        (since < 0 || chunk.version() > static_cast<std::uint64_t>(since));
    if (!wanted) return std::vector<std::uint8_t>{};
    backlog_->apply(chunk);
    return snapshot_of(chunk);
  });
}

void Lane::restore(std::uint32_t slot, const std::uint8_t* snapshot, std::size_t bytes,
                   std::uint32_t lease) {
  ask([=] {
    backlog_->close(store_.at(slot));
    restore_chunk(store_.at(slot), snapshot, bytes, lease);
    backlog_->drop(store_.at(slot));
  });
}

void Lane::wake() {
  const std::uint64_t one = 1;
  (void)!write(wake_, &one, sizeof one);
}

}  // namespace mh::server
