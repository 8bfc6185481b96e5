#include "server/factors.h"

#include <algorithm>
#include <cmath>

#include "kernels/dispatch.h"
#include "server/replication.h"
#include "wire/codec.h"

namespace mh::server {
namespace {

using wire::Encoding;
using wire::Kind;

// More samples at once would not make the product faster, only its scratch larger.
constexpr std::size_t kJoinedSamples = 512;

std::size_t bytes_of(std::size_t floats) {
  return (floats + static_cast<std::size_t>(kSlack)) * sizeof(float);
}

bool plain(const Frame& frame) {
  return wire::encoding_of(frame.header.flags) == Encoding::kFloat32 &&
         reinterpret_cast<std::uintptr_t>(frame.payload) % alignof(float) == 0;
}

// Numbers [first, first + count) of the payload, each times `scale`.
void decode(const Frame& frame, std::size_t numbers, std::size_t first, std::size_t count,
            float scale, float* out) {
  wire::decode_range(wire::encoding_of(frame.header.flags), frame.payload,
                     frame.header.payload_bytes, numbers, first, count, out);
  if (scale == 1.0f) return;
  for (std::size_t i = 0; i < count; ++i) out[i] *= scale;
}

// The outer rule counts updates, so each goes through it by itself. A copy must come to the same
// numbers as its primary: it gets, and applies, one update at a time.
bool goes_alone(const Chunk& chunk, const wire::Header& header) {
  return chunk.rule.kind == RuleKind::kOuter || is_replicated(header) || !chunk.copies.empty();
}

}  // namespace

std::size_t Factors::apply(const ChunkShape& span, const std::vector<Update>& queue,
                           std::size_t first) {
  const Span chunks = context_.store.span(span);
  joined_ = Joined{};
  std::size_t end = first;
  for (; end < queue.size() && fits(chunks, queue[end]); ++end) {
    const std::size_t ahead = joined_.updates.size();
    const std::vector<bool> before = applied_before(chunks, queue[end]);
    if (!admission_.admit(chunks, queue[end], ahead)) continue;
    joined_.skipped = before;
    joined_.alone = goes_alone(*chunks.first, queue[end].frame->header) || !before.empty();
    joined_.updates.push_back(&queue[end]);
    joined_.rates.push_back(admission_.rate(*chunks.first, queue[end], ahead));
    joined_.samples += queue[end].frame->header.count;
    joined_.steps += queue[end].frame->header.steps;
  }
  if (!joined_.updates.empty()) apply_joined(span);
  return end;
}

bool Factors::fits(const Span& chunks, const Update& next) const {
  if (static_cast<Kind>(next.frame->header.kind) != Kind::kFactors) return false;
  if (joined_.updates.empty()) return true;
  return !joined_.alone && applied_before(chunks, next).empty() &&
         joined_.samples + next.frame->header.count <= kJoinedSamples;
}

// Of an update that some of its chunks have from a snapshot and others have not: those who have it.
std::vector<bool> Factors::applied_before(const Span& chunks, const Update& update) const {
  const wire::Header& h = update.frame->header;
  std::vector<bool> before;
  if (is_replicated(h) || chunks.count == 1) return before;
  for (const Chunk& chunk : chunks) before.push_back(chunk.log.applied(h.client, h.sequence));
  const auto have = std::count(before.begin(), before.end(), true);
  if (have == 0 || have == static_cast<std::ptrdiff_t>(chunks.count)) before.clear();
  return before;
}

void Factors::apply_joined(const ChunkShape& span) {
  joined_.rate = *std::max_element(
      joined_.rates.begin(), joined_.rates.end(),
      [](double a, double b) { return std::fabs(a) < std::fabs(b); });
  Block block;
  multiply(span, operands(span, block));
  for (const Update* update : joined_.updates) {
    context_.counters.updates.add();
    context_.counters.pushed_bytes.add(update->frame->header.payload_bytes);
    count(context_.store.span(span), *update, joined_.rate);
  }
}

// The chunks have the update: so must their copies.
void Factors::count(const Span& chunks, const Update& update, double rate) {
  const bool some = !joined_.skipped.empty(), copies = !chunks.first->copies.empty();
  if (copies && !some) {
    context_.replication->record(update.frame, chunks, static_cast<float>(rate));
  }
  for (std::size_t i = 0; i < chunks.count; ++i) {
    if (some && joined_.skipped[i]) continue;
    if (copies && some) context_.replication->record(nullptr, {chunks.first + i, 1}, 0.0f);
    chunks.first[i].advance();
  }
  admission_.acknowledge(chunks, update);
}

// The payload itself where it can be, or a copy that joins several; rates that differ from the
// largest are made up for in the errors.
Factors::Operands Factors::operands(const ChunkShape& span, Block& block) const {
  const std::size_t in = span.row_floats, rows = span.span_rows;
  const Frame& only = *joined_.updates[0]->frame;
  if (joined_.updates.size() == 1 && plain(only)) {
    const auto* a = reinterpret_cast<const float*>(only.payload);
    return {a, a + joined_.samples * in};
  }
  block = context_.pool.take(bytes_of(joined_.samples * (in + rows)));
  float* a = block.floats();
  float* d = a + joined_.samples * in;
  const Operands whole{a, d};
  for (std::size_t i = 0; i < joined_.updates.size(); ++i) {
    const Frame& frame = *joined_.updates[i]->frame;
    const std::size_t k = frame.header.count, numbers = k * (in + rows);
    const double scale = joined_.rate != 0.0 ? joined_.rates[i] / joined_.rate : 1.0;
    decode(frame, numbers, 0, k * in, 1.0f, a);
    decode(frame, numbers, k * in, k * rows, static_cast<float>(scale), d);
    a += k * in;
    d += k * rows;
  }
  return whole;
}

void Factors::multiply(const ChunkShape& span, const Operands& operands) {
  const KernelTable& table = kernels();
  const auto in = static_cast<Index>(span.row_floats), k = static_cast<Index>(joined_.samples);
  const Block panels = context_.pool.take(bytes_of(static_cast<std::size_t>(panel_floats(k, in))));
  const Block scratch =
      context_.pool.take(bytes_of(static_cast<std::size_t>(linear_backward_scratch(k))));
  table.pack_panels(k, in, operands.a, in, panels.floats());
  const Span chunks = context_.store.span(span);
  for (std::size_t i = 0; i < chunks.count; ++i) {
    if (!joined_.skipped.empty() && joined_.skipped[i]) continue;
    Chunk& chunk = chunks.first[i];
    chunk.begun += joined_.updates.size();
    const RuleStep step = summing(
        at_step(chunk.rule, joined_.rate, static_cast<std::int64_t>(chunk.begun), 1.0),
        joined_.steps);
    LinearBackward p{};
    p.batch = k;
    p.in = in;
    p.out = chunk.shape->rows;
    p.dy = operands.d + (chunk.shape->first_row - span.first_row);
    p.lddy = static_cast<Index>(span.span_rows);
    p.scratch = scratch.floats();
    p.x_panels = panels.floats();
    p.weight = chunk.weights;
    p.state0 = chunk.state(0);
    p.state1 = chunk.state(1);
    p.train = true;
    p.step = &step;
    table.linear_backward(p);
  }
}

}  // namespace mh::server
