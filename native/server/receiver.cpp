#include "server/receiver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/dispatch.h"
#include "wire/io.h"

namespace mh::server {

using wire::Header;
using wire::Kind;

constexpr std::size_t kHeaderBytes = sizeof(Header);

Receiver::Receiver(int fd, const Sender& sender, ClientMemory memory, LaneContext& context)
    : fd_(fd),
      sender_(sender),
      memory_(std::make_shared<ClientMemory>(std::move(memory))),
      context_(context),
      inbox_(context.pool.take(kInboxBytes)) {
  frames_.reserve(kMaxFrames);
}

Receiver::~Receiver() {
  if (large_.shape) context_.counters.waiting_bytes.add(std::size_t{0} - large_.block.bytes());
}

void Receiver::receive() {
  frames_.clear();
  compact();
  parse_inbox();
  if (frames_.empty() && !large_.shape) {
    read_inbox();
    parse_inbox();
  }
  if (large_.shape) fill_large();
}

void Receiver::release() {
  frames_.clear();
}

bool Receiver::more() const {
  return !ending_ && !large_.shape && skip_left_ == 0 && !incomplete_ &&
         end_ - begin_ >= kHeaderBytes;
}

void Receiver::compact() {
  if (begin_ > 0 && end_ > begin_) {
    std::memmove(inbox_.data(), inbox_.data() + begin_, end_ - begin_);
  }
  end_ -= begin_;
  begin_ = 0;
}

// Reads what is there; 0 if nothing is, or nothing will be any more.
std::size_t Receiver::read(iovec* parts, std::size_t count) {
  const wire::Moved got = wire::receive(fd_, parts, count, /*wait=*/false);
  const bool at_end =
      got.outcome == wire::Outcome::kClosed || got.outcome == wire::Outcome::kBroken;
  closed_ |= at_end;
  return got.bytes;
}

void Receiver::read_inbox() {
  const std::size_t room = inbox_.bytes() - end_;
  const std::size_t header_rest = kHeaderBytes > end_ ? kHeaderBytes - end_ : room;
  const std::size_t wanted = expect_large_ && skip_left_ == 0 ? header_rest : room;
  iovec part{inbox_.data() + end_, wanted};
  const std::size_t got = read(&part, 1);
  end_ += got;
  if (got > 0) incomplete_ = false;
}

void Receiver::parse_inbox() {
  while (!ending_ && !large_.shape && frames_.size() < kMaxFrames) {
    if (!skip() || end_ - begin_ < kHeaderBytes) return;
    Header header;
    std::memcpy(&header, inbox_.data() + begin_, kHeaderBytes);
    if (!take(header)) return;
  }
  if (ending_) begin_ = end_ = 0;
}

// Drops what is here of a refused payload; false if there is more of it to come.
bool Receiver::skip() {
  const std::size_t here = std::min(skip_left_, end_ - begin_);
  begin_ += here;
  skip_left_ -= here;
  return skip_left_ == 0;
}

// False if the frame must wait for more of its payload.
bool Receiver::take(const Header& header) {
  Verdict verdict =
      check(header, sender_, context_.layout, context_.settings.max_payload_bytes);
  if (verdict.action != Action::kAccept) {
    refuse(header, std::move(verdict));
    return true;
  }
  const std::size_t body = stream_bytes(header), here = end_ - begin_ - kHeaderBytes;
  if (body <= here) {
    take_whole(header, *verdict.shape);
  } else if (kHeaderBytes + body <= kInboxBytes / 2) {
    incomplete_ = true;
    expect_large_ = false;
    return false;
  } else if (is_update(static_cast<Kind>(header.kind)) && !is_replicated(header) &&
             context_.store.applied(*verdict.shape, header)) {
    take_replay(header, *verdict.shape);
  } else {
    begin_large(header, *verdict.shape);
  }
  return true;
}

void Receiver::refuse(const Header& header, Verdict verdict) {
  Frame& frame = frames_.emplace_back();
  frame.header = header;
  frame.refusal = verdict.refusal;
  frame.sentence = std::move(verdict.sentence);
  begin_ += kHeaderBytes;
  ending_ = verdict.action == Action::kClose;
  skip_left_ = ending_ ? 0 : stream_bytes(header);
}

void Receiver::take_whole(const Header& header, const ChunkShape& shape) {
  const std::uint8_t* const here = inbox_.data() + begin_ + kHeaderBytes;
  Frame& frame = frames_.emplace_back();
  frame.header = header;
  frame.shape = &shape;
  frame.floats = shape.floats();
  frame.payload = by_reference(header) ? referred(header, here, frame) : here;
  begin_ += kHeaderBytes + stream_bytes(header);
  expect_large_ = false;
}

// A client's reference was checked with its header; a server's lies here.
const std::uint8_t* Receiver::referred(const Header& header, const std::uint8_t* here,
                                       Frame& frame) const {
  if (!is_replicated(header)) return memory_->data() + header.place;
  Reference at;
  std::memcpy(&at, here, sizeof at);
  if (at <= memory_->bytes() && header.payload_bytes <= memory_->bytes() - at) {
    return memory_->data() + at;
  }
  frame.shape = nullptr;
  frame.refusal = wire::Refusal::kWrongSize;
  frame.sentence = "A payload is not inside the memory that the server shares.";
  return nullptr;
}

std::optional<Frame> Receiver::checked(const Posted& posted) const {
  const Header& header = posted.header;
  const Verdict verdict =
      check(header, sender_, context_.layout, context_.settings.max_payload_bytes);
  if (verdict.action != Action::kAccept || !may_wait(header)) return std::nullopt;
  Frame frame;
  frame.header = header;
  frame.shape = verdict.shape;
  frame.floats = verdict.shape->floats();
  frame.payload =
      referred(header, reinterpret_cast<const std::uint8_t*>(&posted.payload), frame);
  return frame.shape ? std::optional(frame) : std::nullopt;
}

void Receiver::share(ClientMemory memory) {
  memory_ = std::make_shared<ClientMemory>(std::move(memory));
  sender_.shared_bytes = memory_->bytes();
}

void Receiver::take_replay(const Header& header, const ChunkShape& shape) {
  Frame& frame = frames_.emplace_back();
  frame.header = header;
  frame.shape = &shape;
  frame.replay = true;
  begin_ += kHeaderBytes;
  skip_left_ = stream_bytes(header);
}

void Receiver::begin_large(const Header& header, const ChunkShape& shape) {
  large_.header = header;
  large_.shape = &shape;
  const bool plain_delta = static_cast<Kind>(header.kind) == Kind::kDelta &&
                           wire::encoding_of(header.flags) == wire::Encoding::kFloat32;
  const ServerSettings& settings = context_.settings;
  large_.pieces = plain_delta && !settings.refuse_nonfinite && !settings.replicated;
  large_.checked = plain_delta && settings.refuse_nonfinite && !is_replicated(header);
  large_.start = large_.filled = 0;
  large_.finite = true;
  large_.block = context_.pool.take(large_.pieces ? kPieceBytes : header.payload_bytes);
  context_.counters.waiting_bytes.add(large_.block.bytes());
  begin_ += kHeaderBytes;
  large_.filled = end_ - begin_;  // less than a piece, as the inbox is no larger
  std::memcpy(large_.block.data(), inbox_.data() + begin_, large_.filled);
  check_arrived(0, large_.filled);
  begin_ = end_ = 0;
  expect_large_ = true;
}

void Receiver::fill_large() {
  const std::size_t rest = large_.header.payload_bytes - large_.start;
  const std::size_t wanted = large_.pieces ? std::min(kPieceBytes, rest) : rest;
  while (large_.filled < wanted) {
    if (!read_large(wanted)) return;
  }
  hand_on_large(wanted);
}

// Reads into the block; behind a payload's end, the next header too. False if nothing was there.
bool Receiver::read_large(std::size_t wanted) {
  const std::size_t rest = wanted - large_.filled, now = std::min(rest, kPieceBytes);
  const bool to_the_end =
      now == rest && large_.start + wanted == large_.header.payload_bytes;
  iovec parts[2] = {{large_.block.data() + large_.filled, now}, {inbox_.data(), kHeaderBytes}};
  const std::size_t got = read(parts, to_the_end ? 2 : 1);
  const std::size_t body = std::min(got, now);
  check_arrived(large_.filled, large_.filled + body);
  large_.filled += body;
  end_ = got - body;
  return got > 0;
}

// Looks at numbers while they are in the cache, where a large payload will not be when it is whole.
void Receiver::check_arrived(std::size_t from, std::size_t to) {
  if (!large_.checked) return;
  const std::size_t first = from / sizeof(float), end = to / sizeof(float);
  large_.finite &= kernels().all_finite(static_cast<Index>(end - first),
                                        large_.block.data() + first * sizeof(float));
}

void Receiver::hand_on_large(std::size_t wanted) {
  Frame& frame = frames_.emplace_back();
  frame.header = large_.header;
  frame.shape = large_.shape;
  frame.payload = large_.block.data();
  frame.piece = large_.pieces;
  frame.checked = large_.checked;
  frame.finite = large_.finite;
  frame.last = large_.start + wanted == large_.header.payload_bytes;
  frame.first = large_.start / sizeof(float);
  frame.floats = large_.pieces ? wanted / sizeof(float) : large_.shape->floats();
  large_.start += wanted;
  large_.filled = 0;
  if (!frame.last) return;
  context_.counters.waiting_bytes.add(std::size_t{0} - large_.block.bytes());
  frame.block = std::make_shared<Block>(std::move(large_.block));
  large_.shape = nullptr;
}

}  // namespace mh::server
