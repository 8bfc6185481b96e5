#include "server/backlog.h"

#include <algorithm>

namespace mh::server {

void Backlog::add(Chunk& chunk, const Frame& frame, const Receiver& from) {
  late_[chunk.shape->slot].push_back({frame, from.memory(), from.sender().peer});
  context_.counters.late_updates.add();
}

void Backlog::apply(Chunk& chunk) {
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
    const std::vector<Late>& late = late_[chunk.shape->slot];
    if (std::any_of(late.begin(), late.end(), shown)) apply(chunk);
  }
}

}  // namespace mh::server
