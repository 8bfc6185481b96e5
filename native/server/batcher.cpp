#include "server/batcher.h"

#include "server/serving.h"

namespace mh::server {

using wire::Encoding;
using wire::Kind;

void Batcher::add(Connection& from, const Frame& frame) {
  if (!frame.last) return enqueue(from, frame, 0);
  context_.counters.frames.add();
  const std::size_t reply = from.replies.add(frame.header);
  if (!frame.shape) return from.replies.refuse(reply, frame.refusal, frame.sentence);
  Chunk& chunk = context_.store.at(*frame.shape);
  const auto kind = static_cast<Kind>(frame.header.kind);
  if (!is_pull(kind) && kind != Kind::kGet) return enqueue(from, frame, reply);
  if (!serve_or_refuse({&chunk, 1}, frame.header, from.replies, reply)) return;
  if (kind == Kind::kGet) {
    return from.replies.give_values(reply, chunk, frame.header.count, Encoding::kFloat32);
  }
  const Encoding encoding = wire::encoding_of(frame.header.flags);
  if (kind == Kind::kPull) return from.replies.give_values(reply, chunk, 0, encoding);
  from.replies.give_changed_rows(reply, chunk, {frame.header.place, frame.header.seen}, encoding);
}

void Batcher::enqueue(Connection& from, const Frame& frame, std::size_t reply) {
  std::vector<Update>& queue = queues_[frame.shape->slot];
  if (queue.empty()) waiting_.push_back(frame.shape);
  queue.push_back({&frame, &from, reply});
  context_.counters.batched_max.raise_to(queue.size());
}

void Batcher::clear() {
  for (const ChunkShape* shape : waiting_) queues_[shape->slot].clear();
  waiting_.clear();
}

}  // namespace mh::server
