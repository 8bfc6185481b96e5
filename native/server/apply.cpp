#include "server/apply.h"

#include <algorithm>
#include <cstring>

#include "kernels/dispatch.h"
#include "server/replication.h"
#include "server/serving.h"
#include "wire/codec.h"

namespace mh::server {
namespace {

using wire::Encoding;
using wire::Kind;

// 16 KB of weights, of gradients and of each state: the block and its updates fit a second-level
// cache many times over, and what is decoded fits the first.
constexpr std::size_t kBlockFloats = 4096;
// Copies are sent so many bytes of updates at once, before those are applied here.
constexpr std::size_t kSentAhead = std::size_t{1} << 20;

Kind kind_of(const Update& update) { return static_cast<Kind>(update.frame->header.kind); }

bool is_whole_delta(const Update& update) {
  return kind_of(update) == Kind::kDelta && !update.frame->piece;
}

// Whether a payload can be read as floats where it lies.
bool plain(const Frame& frame) {
  return wire::encoding_of(frame.header.flags) == Encoding::kFloat32 &&
         reinterpret_cast<std::uintptr_t>(frame.payload) % alignof(float) == 0;
}

void update_range(const Chunk& chunk, const RuleStep& step, const float* grad, std::size_t first,
                  std::size_t count) {
  float *state0 = chunk.state(0), *state1 = chunk.state(1);
  kernels().update(step, static_cast<Index>(count), chunk.weights + first, grad,
                   state0 ? state0 + first : nullptr, state1 ? state1 + first : nullptr);
}

}  // namespace

void Applier::apply(Batcher& batcher) {
  for (const ChunkShape* shape : batcher.waiting()) {
    last_chunk_ = shape == batcher.waiting().back();
    apply(context_.store.at(*shape), batcher.queue(*shape));
  }
  batcher.clear();
}

void Applier::apply(Chunk& chunk, const std::vector<Update>& queue) {
  for (std::size_t i = 0; i < queue.size();) i = apply_run(chunk, queue, i);
}

std::size_t Applier::apply_run(Chunk& chunk, const std::vector<Update>& queue, std::size_t first) {
  const Update& update = queue[first];
  if (is_whole_delta(update)) return apply_deltas(chunk, queue, first);
  switch (kind_of(update)) {
    case Kind::kFactors:
      return factors_.apply(*chunk.shape, queue, first);
    case Kind::kDelta:
      apply_piece(chunk, update);
      break;
    case Kind::kRows:
      apply_rows(chunk, update);
      break;
    default:
      set_array(chunk, update);
      break;
  }
  return first + 1;
}

std::size_t Applier::apply_deltas(Chunk& chunk, const std::vector<Update>& queue,
                                  std::size_t first) {
  steps_.clear();
  std::size_t end = first;
  for (; end < queue.size() && is_whole_delta(queue[end]); ++end) {
    const std::size_t ahead = steps_.size();
    if (!admission_.admit({&chunk, 1}, queue[end], ahead)) continue;
    const double rate = admission_.rate(chunk, queue[end], ahead);
    record(chunk, queue[end], rate, ahead);
    add_step(chunk, *queue[end].frame, &queue[end], rate);
  }
  if (context_.replication->recorded_bytes() >= (last_chunk_ ? 1 : kSentAhead)) {
    context_.replication->send_ahead();
  }
  walk(chunk);
  for (const Step& step : steps_) finish(chunk, *step.update);
  return end;
}

void Applier::apply_late(Chunk& chunk, const std::vector<const Frame*>& frames) {
  steps_.clear();
  for (const Frame* frame : frames) add_step(chunk, *frame, nullptr, frame->header.rate);
  walk(chunk);
}

void Applier::add_step(Chunk& chunk, const Frame& frame, const Update* update, double rate) {
  const auto number = static_cast<std::int64_t>(++chunk.begun);
  const RuleStep step = at_step(chunk.rule, rate, number, 1.0);
  steps_.push_back({&frame, update, summing(step, frame.header.steps)});
}

void Applier::walk(Chunk& chunk) {
  const bool one_walk = steps_.size() == 1 && plain(*steps_[0].frame);
  const std::size_t floats = chunk.shape->floats(), block = one_walk ? floats : kBlockFloats;
  for (std::size_t i = 0; i < floats; i += block) {
    for (const Step& step : steps_) apply_block(chunk, step, i, std::min(block, floats - i));
  }
}

void Applier::apply_block(Chunk& chunk, const Step& step, std::size_t first, std::size_t count) {
  const Frame& frame = *step.frame;
  if (plain(frame)) {
    const auto* grad = reinterpret_cast<const float*>(frame.payload);
    return update_range(chunk, step.rule, grad + first, first, count);
  }
  alignas(64) float decoded[kBlockFloats];
  wire::decode_range(wire::encoding_of(frame.header.flags), frame.payload,
                     frame.header.payload_bytes, chunk.shape->floats(), first, count, decoded);
  update_range(chunk, step.rule, decoded, first, count);
}

// A piece may come twice, when its connection broke and the update was sent again: what was applied
// of it before is passed over.
void Applier::apply_piece(Chunk& chunk, const Update& update) {
  const Frame& frame = *update.frame;
  const wire::Header& h = frame.header;
  if (!serves(chunk, h) || chunk.log.applied(h.client, h.sequence)) {
    if (frame.last) admission_.admit({&chunk, 1}, update, 0);
    return;
  }
  Partial* partial = chunk.log.partial(h.client, h.sequence);
  if (!partial) {
    const double rate = admission_.rate(chunk, update, 0);
    partial = chunk.log.begin(h.client, {h.sequence, frame.first, ++chunk.begun, rate});
  }
  const std::size_t end = frame.first + frame.floats;
  const std::size_t first = std::max(frame.first, partial->floats);
  if (first < end) {
    const auto number = static_cast<std::int64_t>(partial->step);
    const auto* grad = reinterpret_cast<const float*>(frame.payload);
    update_range(chunk, summing(at_step(chunk.rule, partial->rate, number, 1.0), h.steps),
                 grad + (first - frame.first), first, end - first);
    partial->floats = end;
    chunk.row_changes.begin_era();  // the rest may never come
  }
  if (!frame.last) return;
  const double rate = partial->rate;
  chunk.log.note_applied(h.client, h.sequence);
  record(chunk, update, rate);
  finish(chunk, update);
}

// Rows are taken in order, all with the same step: a row that is named twice is updated twice.
void Applier::apply_rows(Chunk& chunk, const Update& update) {
  if (!admission_.admit({&chunk, 1}, update, 0)) return;
  const wire::Header& h = update.frame->header;
  const std::size_t width = chunk.shape->row_floats;
  const double rate = admission_.rate(chunk, update, 0);
  const auto number = static_cast<std::int64_t>(++chunk.begun);
  const RuleStep step = summing(at_step(chunk.rule, rate, number, 1.0), h.steps);
  const std::uint8_t* numbers = update.frame->payload;
  const std::uint8_t* grads = numbers + std::size_t{h.count} * sizeof(std::uint32_t);
  const Block row_grad = context_.pool.take(width * sizeof(float));
  for (std::size_t i = 0; i < h.count; ++i) {
    std::uint32_t row;
    std::memcpy(&row, numbers + i * sizeof row, sizeof row);
    if (row >= chunk.shape->rows) continue;  // changed in the client's memory since it was checked
    std::memcpy(row_grad.data(), grads + i * width * sizeof(float), width * sizeof(float));
    update_range(chunk, step, row_grad.floats(), row * width, width);
    chunk.row_changes.note(row, chunk.version() + 1);
  }
  record(chunk, update, rate);
  finish(chunk, update);
}

void Applier::set_array(Chunk& chunk, const Update& update) {
  const Frame& frame = *update.frame;
  if (!admission_.admit({&chunk, 1}, update, 0)) return;
  std::memcpy(chunk.array(frame.header.count), frame.payload, frame.header.payload_bytes);
  if (frame.header.steps > 0) chunk.begun = frame.header.steps;  // a run goes on where one stopped
  record(chunk, update, frame.header.rate);
  count(chunk, update);
}

// What the chunk gets, its copies must get.
void Applier::record(Chunk& chunk, const Update& update, double rate, std::size_t ahead) {
  if (chunk.copies.empty()) return;
  context_.replication->record(update.frame, {&chunk, 1}, static_cast<float>(rate), ahead);
}

void Applier::finish(Chunk& chunk, const Update& update) {
  context_.counters.updates.add();
  context_.counters.pushed_bytes.add(update.frame->header.payload_bytes);
  count(chunk, update);
}

void Applier::count(Chunk& chunk, const Update& update) {
  if (kind_of(update) == Kind::kRows) {
    chunk.advance_rows();
  } else {
    chunk.advance();
  }
  admission_.acknowledge({&chunk, 1}, update);
}

}  // namespace mh::server
