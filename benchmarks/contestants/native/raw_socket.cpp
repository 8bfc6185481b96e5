// A plain TCP socket as a contestant: the bytes of push and pull, and no parameters anywhere.
//
//   raw_socket server          prints its port, then answers one client until that leaves
//   raw_socket client PORT     follows orders
//
// A push carries a payload and is answered with a header, a pull the other way round; `both` carries
// a payload in both directions.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "driver.h"

namespace {

constexpr std::size_t kLargest = 16u << 20;
constexpr std::size_t kPiece = 256u << 10;  // what is received at a time: it stays in the cache

struct Header {
  std::uint64_t payload_bytes = 0;  // that follow
  std::uint64_t answer_bytes = 0;   // that are asked for
  char rest[48] = {};
};
static_assert(sizeof(Header) == 64, "as long as a frame's");

// Frames of one kind on their way out, as many in one call as there are.
class Sender {
 public:
  explicit Sender(int socket) : socket_(socket) {}

  void queue(const Header& header) {
    if (waiting_ == 0) header_ = header;
    waiting_ += 1;
  }
  long waiting() const { return waiting_; }
  const Header& header() const { return header_; }

  // False when the peer is gone. Without `block`, stops where the socket would wait.
  bool send(bool block) {
    while (waiting_ > 0) {
      const ssize_t sent = send_some(block ? 0 : MSG_DONTWAIT);
      if (sent < 0) return errno == EAGAIN;
      offset_ += static_cast<std::size_t>(sent);
      const std::size_t frame = sizeof header_ + header_.payload_bytes;
      waiting_ -= static_cast<long>(offset_ / frame);
      offset_ %= frame;
    }
    return true;
  }

 private:
  ssize_t send_some(int flags) {
    iovec parts[2 * kChunks];
    int count = 0;
    std::size_t skip = offset_;
    for (long i = 0; i < std::min<long>(waiting_, kChunks); ++i) {
      add(parts, count, &header_, sizeof header_, skip);
      add(parts, count, payload_.data(), header_.payload_bytes, skip);
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<std::size_t>(count);
    return sendmsg(socket_, &message, flags | MSG_NOSIGNAL);
  }

  static void add(iovec* parts, int& count, void* data, std::size_t bytes, std::size_t& skip) {
    const std::size_t skipped = std::min(skip, bytes);
    skip -= skipped;
    if (skipped < bytes) parts[count++] = {static_cast<char*>(data) + skipped, bytes - skipped};
  }

  int socket_;
  Header header_;
  long waiting_ = 0;
  std::size_t offset_ = 0;  // sent of the first that waits
  std::vector<char> payload_ = std::vector<char>(kLargest, 0);
};

int tcp_socket() {
  const int made = socket(AF_INET, SOCK_STREAM, 0);
  const int one = 1;
  setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return made;
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

// Answers every frame that a piece of the stream completes.
class Server {
 public:
  explicit Server(int client) : client_(client), sender_(client) {}

  void serve() {
    while (true) {
      const ssize_t got = recv(client_, piece_.data(), piece_.size(), 0);
      if (got <= 0) return;
      for (std::size_t at = 0; at < static_cast<std::size_t>(got);) {
        at += take(piece_.data() + at, static_cast<std::size_t>(got) - at);
      }
      if (!sender_.send(true)) return;
    }
  }

 private:
  std::size_t take(const char* data, std::size_t bytes) {
    if (have_ < sizeof header_) {
      const std::size_t taken = std::min(bytes, sizeof header_ - have_);
      std::memcpy(reinterpret_cast<char*>(&header_) + have_, data, taken);
      have_ += taken;
      left_ = header_.payload_bytes;
      if (have_ == sizeof header_ && left_ == 0) answer();
      return taken;
    }
    const std::size_t taken = std::min(bytes, left_);
    left_ -= taken;
    if (left_ == 0) answer();
    return taken;
  }

  void answer() {
    const Header reply{header_.answer_bytes, 0, {}};
    if (sender_.waiting() > 0 && sender_.header().payload_bytes != reply.payload_bytes) {
      sender_.send(true);
    }
    sender_.queue(reply);
    have_ = 0;
  }

  int client_;
  Sender sender_;
  Header header_;
  std::size_t have_ = 0, left_ = 0;
  std::vector<char> piece_ = std::vector<char>(kPiece, 0);
};

int serve() {
  const int listener = tcp_socket();
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0) return 1;
  listen(listener, 1);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  const int client = accept(listener, nullptr, nullptr);
  const int one = 1;
  setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  Server(client).serve();
  return 0;
}

class Client {
 public:
  explicit Client(int port) : socket_(tcp_socket()), sender_(socket_) {
    sockaddr_in address = loopback(port);
    if (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::exit(1);
  }

  Answer execute(const Order& order) {
    const Header request{order.operation == "pull" ? 0 : order.bytes,
                         order.operation == "push" ? 0 : order.bytes,
                         {}};
    if (order.window == 1) {
      return one_at_a_time(order.seconds, [&](long) { in_turns(request, 1, 1); });
    }
    const auto began = Clock::now();
    long operations = 0;
    while (seconds_between(began, Clock::now()) < order.seconds) {
      const long count = std::max<long>(2 * order.window, (64 << 20) / static_cast<long>(order.bytes));
      in_turns(request, count, order.window);
      operations += count;
    }
    return {operations, seconds_between(began, Clock::now()), 0.0};
  }

 private:
  // `count` operations with `window` of them under way. One thread sends what the socket takes and
  // receives what is there, so that neither direction waits for the other.
  void in_turns(const Header& request, long count, long window) {
    const std::size_t frame = sizeof(Header) + request.answer_bytes;
    const std::size_t expected = static_cast<std::size_t>(count) * frame;
    std::size_t received = 0;
    long begun = 0;
    while (received < expected) {
      const long answered = static_cast<long>(received / frame);
      for (; begun < count && begun - answered < window; ++begun) sender_.queue(request);
      if (!sender_.send(false)) std::exit(1);
      received += receive(sender_.waiting() == 0);
    }
  }

  // What is there; waits for some when there is nothing to send either.
  std::size_t receive(bool nothing_to_send) {
    if (!nothing_to_send) {
      pollfd either{socket_, POLLIN | POLLOUT, 0};
      poll(&either, 1, -1);
      if (!(either.revents & POLLIN)) return 0;
    }
    const ssize_t got = recv(socket_, piece_.data(), piece_.size(), 0);
    if (got <= 0) std::exit(1);
    return static_cast<std::size_t>(got);
  }

  int socket_;
  Sender sender_;
  std::vector<char> piece_ = std::vector<char>(kPiece, 0);
};

}  // namespace

int main(int count, char** arguments) {
  if (count == 2 && std::strcmp(arguments[1], "server") == 0) return serve();
  if (count != 3) return 2;
  Client client(std::atoi(arguments[2]));
  serve_orders([&](const Order& order) { return client.execute(order); });
  return 0;
}
