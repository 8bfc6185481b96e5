#include "client/exchange.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "wire/clock.h"
#include "wire/codec.h"

namespace mh::client {
namespace {

using wire::Encoding;
using wire::Kind;
using wire::Outcome;

constexpr std::size_t kLongestSentence = 65536;
// Encoded payloads are prepared so many bytes at a time, to be sent while they are in cache.
constexpr std::size_t kEncodedAtOnce = 256 * 1024;
// A server that is at work on what it was sent answers within this.
constexpr std::int64_t kSpinNs = 100'000;
// Asking costs as much as copying a small chunk does.
constexpr std::chrono::milliseconds kAliveFor{1};

void prepare_socket(int fd, double longest_wait_s) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  const timeval wait{0, static_cast<suseconds_t>(std::ceil(longest_wait_s * 1e6))};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
  const int yes = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);  // fails on a unix socket: fine
}

}  // namespace

Exchange::Exchange(int fd, std::size_t window, const Patience& patience)
    : fd_(fd), patience_(patience), window_(window), spin_(kSpinNs) {
  prepare_socket(fd_, patience_.longest_wait().count());
}

Exchange::~Exchange() { ::close(fd_); }

void Exchange::hang_up() { ::shutdown(fd_, SHUT_RDWR); }

void Exchange::require_alive() {
  if (broken_) throw ConnectionLost("This link was lost or closed before; make a new one.");
  const auto now = Patience::Clock::now();
  if (now - seen_alive_ < kAliveFor) return;
  refused_.reset();
  window_.begin(0);
  char byte;
  const wire::Moved seen = wire::moved(::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT));
  if (seen.outcome == Outcome::kClosed) lose("closed by the server");
  if (seen.outcome == Outcome::kBroken) lose(std::strerror(seen.error));
  seen_alive_ = now;
}

void Exchange::run(Errand& errand) {
  if (broken_) throw ConnectionLost("This link was lost or closed before; make a new one.");
  broken_ = true;  // unless the loop comes to its end
  window_.begin(errand.size());
  refused_.reset();
  patience_.begin();
  go(errand);
  broken_ = false;
  if (refused_) throw Refused(*refused_);
}

void Exchange::go(Errand& errand) {
  while (!window_.all_answered()) {
    if (outbox_.empty()) prepare(errand);
    if (!outbox_.empty() && !send()) {
      wait_for_either_direction(errand);
    } else if (outbox_.empty() && !window_.open()) {
      receive(errand, /*wait=*/true);
    }
  }
}

// Half a window at a time: the server works on one half while the other is on its way.
void Exchange::prepare(Errand& errand) {
  std::size_t encoded = 0, prepared = 0;
  while (window_.open() && prepared++ < window_.half() && outbox_.has_room() &&
         encoded < kEncodedAtOnce) {
    const std::size_t i = window_.take_next();
    Request& request = window_.at(i);
    errand.prepare(i, request);
    const bool plain = wire::encoding_of(request.header.flags) == Encoding::kFloat32;
    encoded += plain ? 0 : request.header.payload_bytes;
    outbox_.add(request);
  }
}

// False if the socket takes nothing at the moment.
bool Exchange::send() {
  const wire::Moved sent = outbox_.send(fd_);
  const bool moved = sent.outcome == Outcome::kDone;
  // A server that refuses to go on closes after saying why: what it said is read before giving up.
  if (sent.outcome == Outcome::kBroken) send_error_ = sent.error;
  patience_.note(moved);
  return moved;
}

void Exchange::wait_for_either_direction(Errand& errand) {
  pollfd ready{fd_, POLLIN | POLLOUT, 0};
  const auto began = Patience::Clock::now();
  const auto wait_ms = std::ceil(patience_.longest_wait().count() * 1e3);
  ::poll(&ready, 1, send_error_ ? 0 : static_cast<int>(wait_ms));
  waited_s_ += Patience::Seconds(Patience::Clock::now() - began).count();
  if ((ready.revents & ~POLLOUT) != 0) {
    receive(errand, /*wait=*/false);
  } else if (send_error_ != 0) {
    lose(std::strerror(send_error_));
  } else {
    patience_.note(false);
  }
}

void Exchange::receive(Errand& errand, bool wait) {
  const auto began = Patience::Clock::now();
  const wire::Moved got = wait ? wait_for_bytes() : inbox_.receive(fd_, false);
  if (wait && !window_.all_prepared()) {
    waited_s_ += Patience::Seconds(Patience::Clock::now() - began).count();
  }
  if (got.outcome == Outcome::kClosed) lose("closed by the server");
  if (got.outcome == Outcome::kBroken) lose(std::strerror(got.error));
  if (got.outcome == Outcome::kDone) take_replies(errand);
  patience_.note(got.outcome == Outcome::kDone);
}

wire::Moved Exchange::wait_for_bytes() {
  const std::int64_t began = wire::now_ns();
  wire::Moved got{Outcome::kNotNow};
  const auto came = [&] {
    got = inbox_.receive(fd_, /*wait=*/false);
    return got.outcome != Outcome::kNotNow;
  };
  if (!spin_.until(began, came)) got = inbox_.receive(fd_, /*wait=*/true);
  spin_.note_wait(wire::now_ns() - began);
  return got;
}

void Exchange::take_replies(Errand& errand) {
  while (inbox_.payload_complete()) {
    if (in_reply_) finish_reply(errand);
    in_reply_ = inbox_.take_header(reply_);
    if (!in_reply_) return;
    begin_reply();
  }
}

void Exchange::begin_reply() {
  if (reply_.magic != wire::kMagic || reply_.version != wire::kVersion) {
    lose_over_reply("which is no frame of this protocol's version");
  }
  reply_to_ = window_.find(reply_);
  // A server that can't make sense of a request may not be able to say which one.
  const bool refused = static_cast<Kind>(reply_.kind) == Kind::kRefused;
  if (reply_to_ == Window::kNone && !refused) lose_over_reply("which answers no request");
  inbox_.expect_payload(place_for_payload(), reply_.payload_bytes);
}

// Checks the payload's size before any of it is taken.
std::uint8_t* Exchange::place_for_payload() {
  const Encoding encoding = wire::encoding_of(reply_.flags);
  switch (static_cast<Kind>(reply_.kind)) {
    case Kind::kAck:
      if (window_.at(reply_to_).out || reply_.payload_bytes != 0) break;
      return nullptr;
    case Kind::kValues: {
      const Request& request = window_.at(reply_to_);
      if (!request.out || encoding > Encoding::kInt8 ||
          reply_.payload_bytes != wire::encoded_bytes(encoding, request.floats)) {
        break;
      }
      if (encoding == Encoding::kFloat32) return reinterpret_cast<std::uint8_t*>(request.out);
      scratch_.resize(reply_.payload_bytes);
      return scratch_.data();
    }
    case Kind::kRowValues: {
      const Request& request = window_.at(reply_to_);
      const std::uint64_t floats = std::uint64_t{reply_.count} * request.row_floats;
      if (request.row_floats == 0 || floats > request.floats || encoding > Encoding::kInt8 ||
          reply_.payload_bytes !=
              reply_.count * sizeof(std::uint32_t) + wire::encoded_bytes(encoding, floats)) {
        break;
      }
      scratch_.resize(reply_.payload_bytes);
      return scratch_.data();
    }
    case Kind::kRefused:
      if (reply_.payload_bytes > kLongestSentence) break;
      scratch_.resize(reply_.payload_bytes);
      return scratch_.data();
    default:
      break;
  }
  lose_over_reply("which does not fit the request");
}

void Exchange::finish_reply(Errand& errand) {
  if (static_cast<Kind>(reply_.kind) == Kind::kRefused) {
    note_refusal(errand);
  } else {
    const Request& request = window_.at(reply_to_);
    if (static_cast<Kind>(reply_.kind) == Kind::kRowValues) {
      place_rows(request);
    } else if (request.out) {
      place_values(request);
    }
    errand.answered(reply_to_, request, reply_);
  }
  window_.mark_answered(reply_to_);
}

void Exchange::place_values(const Request& request) {
  const Encoding encoding = wire::encoding_of(reply_.flags);
  if (encoding == Encoding::kFloat32) return;  // they were received where they belong
  wire::decode(encoding, scratch_.data(), scratch_.size(), request.floats, request.out);
}

void Exchange::place_rows(const Request& request) {
  const std::size_t width = request.row_floats, rows = request.floats / width;
  const std::size_t numbers_bytes = reply_.count * sizeof(std::uint32_t);
  row_values_.resize(reply_.count * width);
  wire::decode(wire::encoding_of(reply_.flags), scratch_.data() + numbers_bytes,
               scratch_.size() - numbers_bytes, row_values_.size(), row_values_.data());
  for (std::size_t i = 0; i < reply_.count; ++i) {
    std::uint32_t row;
    std::memcpy(&row, scratch_.data() + i * sizeof row, sizeof row);
    if (row >= rows) lose_over_reply("which names a row that the chunk does not have");
    std::memcpy(request.out + row * width, row_values_.data() + i * width, width * sizeof(float));
    request.changed[row] = 1;
  }
}

void Exchange::note_refusal(Errand& errand) {
  const std::string sentence(scratch_.begin(), scratch_.end());
  // A chunk that has moved is asked for elsewhere: what else is wrong says more.
  const auto stale = static_cast<std::uint32_t>(wire::Refusal::kStaleLease);
  if (!refused_ || (refused_->code == stale && reply_.count != stale)) {
    refused_.emplace(reply_.count, reply_.chunk, sentence);
  }
  if (reply_to_ == Window::kNone) lose("closed by the server");
  errand.refused(reply_to_, reply_.count);
}

void Exchange::lose(const std::string& why) {
  if (refused_) throw Refused(*refused_);  // the reason why the server closed
  throw ConnectionLost("The connection is lost (" + why + ") with " +
                       std::to_string(window_.unanswered()) + " requests unanswered.");
}

void Exchange::lose_over_reply(const std::string& why) {
  lose("the server sent a frame of kind " + std::to_string(reply_.kind) + " for chunk " +
       std::to_string(reply_.chunk) + " with " + std::to_string(reply_.payload_bytes) +
       " bytes, " + why);
}

}  // namespace mh::client
