#include "server/admission.h"

#include <algorithm>
#include <cstring>

#include "kernels/dispatch.h"
#include "server/held_replies.h"
#include "server/replication.h"
#include "server/serving.h"
#include "server/shipment.h"
#include "wire/codec.h"

namespace mh::server {

using wire::Encoding;
using wire::Kind;
using wire::Refusal;

namespace {

// An array that is set is no update of a client's unless it says so with a number.
bool is_logged(const wire::Header& h) {
  return static_cast<Kind>(h.kind) != Kind::kSet || h.sequence != 0;
}

}  // namespace

bool Admission::admit(const Span& chunks, const Update& update, std::size_t ahead) {
  const wire::Header& h = update.frame->header;
  if (is_replicated(h)) {
    if (!in_step(chunks, update, ahead)) return false;
  } else {
    if (!serve_or_refuse(chunks, h, update.from->replies, update.reply)) return false;
    if (is_logged(h) && take_replay(chunks, update, ahead)) return false;
  }
  if (!sound(*chunks.first, update)) return false;
  if (!is_logged(h)) return true;
  for (Chunk& chunk : chunks) chunk.log.note_applied(h.client, h.sequence);
  return true;
}

bool Admission::admit_posted(Chunk& chunk, const Frame& f) {
  const wire::Header& h = f.header;
  const bool in_step = h.lease == chunk.lease && h.seen == chunk.version() &&
                       h.place == place_of({&chunk, 1});
  if (!in_step || !wire::well_formed(wire::encoding_of(h.flags), f.payload, h.payload_bytes,
                                     f.floats)) {
    return false;
  }
  chunk.log.note_applied(h.client, h.sequence);
  return true;
}

bool Admission::take_replay(const Span& chunks, const Update& update, std::size_t ahead) {
  const wire::Header& h = update.frame->header;
  for (const Chunk& chunk : chunks) {
    if (!update.frame->replay && !chunk.log.applied(h.client, h.sequence)) return false;
  }
  context_.counters.replays.add();
  acknowledge(chunks, update, ahead);
  return true;
}

// A copy takes an update only where its primary applied it.
bool Admission::in_step(const Span& chunks, const Update& update, std::size_t ahead) {
  const wire::Header& h = update.frame->header;
  const std::uint64_t version = chunks.first->version() + ahead;
  const std::uint64_t place = ahead == 0 ? place_of(chunks) : h.lease;
  if (h.seen == version && h.place == place) return true;
  update.from->replies.refuse(update.reply, Refusal::kOutOfStep,
                              "This copy of chunk " + std::to_string(h.chunk) +
                                  " is at version " + std::to_string(version) +
                                  "; the update is for version " + std::to_string(h.seen) +
                                  " of the primary's.");
  return false;
}

double Admission::rate(const Chunk& chunk, const Update& update, std::size_t ahead) {
  const wire::Header& h = update.frame->header;
  if (is_replicated(h)) return h.rate;
  const std::uint64_t now = chunk.version() + ahead;
  const std::uint64_t staleness = now > h.seen ? now - h.seen : 0;
  context_.counters.staleness[std::min<std::uint64_t>(staleness, kStalenessBins - 1)].add();
  if (!context_.settings.scale_by_staleness || staleness < 2) return h.rate;
  const double scaled = h.rate / static_cast<double>(staleness);
  // Copies get the rate in a header, as a float, and must come to the same numbers.
  return context_.settings.replicated ? static_cast<float>(scaled) : scaled;
}

void Admission::acknowledge(const Span& chunks, const Update& update, std::size_t ahead) {
  const wire::Header& h = update.frame->header;
  if (!is_replicated(h) && context_.held->hold(update, chunks, ahead)) return;
  update.from->replies.acknowledge(update.reply, chunks.first->version() + ahead);
  if (h.flags & wire::kWantValues) {
    update.from->replies.give_values(update.reply, *chunks.first, 0, Encoding::kFloat32);
  }
}

bool Admission::sound(const Chunk& chunk, const Update& update) {
  const Frame& f = *update.frame;
  const auto kind = static_cast<Kind>(f.header.kind);
  if (kind == Kind::kDelta && !wire::well_formed(wire::encoding_of(f.header.flags), f.payload,
                                                 f.header.payload_bytes, f.floats)) {
    update.from->replies.refuse(update.reply, Refusal::kWrongSize,
                                "The positions of a top-k update must rise and lie in its chunk.");
    return false;
  }
  if (kind == Kind::kRows && !rows_exist(chunk, update)) return false;
  if (!context_.settings.refuse_nonfinite || is_replicated(f.header) || finite(chunk, f)) {
    return true;
  }
  update.from->replies.refuse(update.reply, Refusal::kNotFinite,
                              "The update for chunk " + std::to_string(f.header.chunk) +
                                  " has numbers that are not finite.");
  return false;
}

bool Admission::rows_exist(const Chunk& chunk, const Update& update) {
  const Frame& f = *update.frame;
  for (std::size_t i = 0; i < f.header.count; ++i) {
    std::uint32_t row;
    std::memcpy(&row, f.payload + i * sizeof row, sizeof row);
    if (row < chunk.shape->rows) continue;
    update.from->replies.refuse(update.reply, Refusal::kWrongSize,
                                "Row " + std::to_string(row) + " was named; chunk " +
                                    std::to_string(f.header.chunk) + " has " +
                                    std::to_string(chunk.shape->rows) + " rows.");
    return false;
  }
  return true;
}

// Copies need the numbers as well: both in one walk.
std::optional<bool> Admission::found_in_passing(const Chunk& chunk, const Frame& f) const {
  const bool plain_delta = static_cast<Kind>(f.header.kind) == Kind::kDelta &&
                           wire::encoding_of(f.header.flags) == Encoding::kFloat32;
  if (!plain_delta || f.block || chunk.copies.empty()) return std::nullopt;
  return context_.replication->lay_by(chunk, f);
}

bool Admission::finite(const Chunk& chunk, const Frame& f) const {
  if (f.checked) return f.finite;
  if (const std::optional<bool> found = found_in_passing(chunk, f)) return *found;
  const Encoding encoding = wire::encoding_of(f.header.flags);
  const std::size_t bytes = f.header.payload_bytes;
  switch (static_cast<Kind>(f.header.kind)) {
    case Kind::kRows: {
      const std::size_t numbers = std::size_t{f.header.count} * chunk.shape->row_floats;
      return wire::finite(Encoding::kFloat32, f.payload + 4 * std::size_t{f.header.count},
                          4 * numbers, numbers);
    }
    case Kind::kFactors:
      return wire::finite(encoding, f.payload, bytes,
                          bytes / (encoding == Encoding::kFloat32 ? 4 : 2));
    default:
      return wire::finite(encoding, f.payload, bytes, f.floats);
  }
}

}  // namespace mh::server
