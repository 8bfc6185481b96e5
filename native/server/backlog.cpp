#include "server/backlog.h"

#include <sys/socket.h>

#include <algorithm>

namespace mh::server {

void Backlog::add(Chunk& chunk, const Frame& frame, const Receiver& from) {
  late_[chunk.shape->slot].push_back({frame, from.memory(), from.sender().peer});
  context_.counters.late_updates.add();
  context_.counters.updates.add();
  context_.counters.pushed_bytes.add(frame.header.payload_bytes);
  chunk.advance();
}

void Backlog::open(const Chunk& chunk, Connection& from) {
  if (!from.ledger) return;
  from.ledger->open(chunk);
  pages_[chunk.shape->slot] = {&from, 0};
}

void Backlog::take_posted(Chunk& chunk) {
  const Page& page = pages_[chunk.shape->slot];
  if (page.from) take(chunk, page.from->ledger->count(chunk));
}

void Backlog::close(Chunk& chunk) {
  Page& page = pages_[chunk.shape->slot];
  if (!page.from) return;
  take(chunk, page.from->ledger->close(chunk));
  page = {};
}

void Backlog::take(Chunk& chunk, std::size_t posted) {
  Page& page = pages_[chunk.shape->slot];
  const Receiver& receiver = page.from->receiver;
  while (page.taken < posted) {
    const auto frame = receiver.checked(page.from->ledger->posted(chunk, page.taken++));
    if (frame && frame->shape == chunk.shape && admission_.admit_posted(chunk, *frame)) {
      add(chunk, *frame, receiver);
    } else {
      // No primary posts this. With a new connection it is told where this copy is.
      shutdown(page.from->fd(), SHUT_RDWR);
      page.taken = posted;
    }
  }
}

void Backlog::apply(Chunk& chunk) {
  take_posted(chunk);
  std::vector<Late>& late = late_[chunk.shape->slot];
  if (late.empty()) return;
  std::vector<const Frame*> frames;
  for (const Late& update : late) frames.push_back(&update.frame);
  applier_.apply_late(chunk, frames);
  late.clear();
}

void Backlog::apply_shown_by(int peer) {
  const auto shown = [=](const Late& update) { return update.peer == peer; };
  for (Chunk& chunk : context_.store.all()) {
    const Connection* poster = pages_[chunk.shape->slot].from;
    if (poster && poster->receiver.sender().peer == peer) close(chunk);
    const std::vector<Late>& late = late_[chunk.shape->slot];
    if (std::any_of(late.begin(), late.end(), shown)) apply(chunk);
  }
}

}  // namespace mh::server
