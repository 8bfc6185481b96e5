#include "server/admission.h"

#include <algorithm>
#include <cstring>

#include "dispatch.h"
#include "wire/codec.h"

namespace mh::server {

using wire::Encoding;
using wire::Kind;
using wire::Refusal;

bool Admission::admit(Chunk& chunk, const Update& update, std::size_t ahead) {
  const wire::Header& h = update.frame->header;
  if (update.frame->replay || chunk.log.applied(h.client, h.sequence)) {
    context_.counters.replays.add();
    acknowledge(chunk, update, chunk.version() + ahead);
    return false;
  }
  if (!sound(chunk, update)) return false;
  chunk.log.note_applied(h.client, h.sequence);
  return true;
}

double Admission::rate(const Chunk& chunk, const Update& update, std::size_t ahead) {
  const wire::Header& h = update.frame->header;
  const std::uint64_t now = chunk.version() + ahead;
  const std::uint64_t staleness = now > h.seen ? now - h.seen : 0;
  context_.counters.staleness[std::min<std::uint64_t>(staleness, kStalenessBins - 1)].add();
  if (!context_.settings.scale_by_staleness || staleness < 2) return h.rate;
  return h.rate / static_cast<double>(staleness);
}

void Admission::acknowledge(Chunk& chunk, const Update& update, std::uint64_t version) {
  update.from->replies.acknowledge(update.reply, version);
  if (update.frame->header.flags & wire::kWantValues) {
    update.from->replies.give_values(update.reply, chunk, 0, Encoding::kFloat32);
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
  if (!context_.settings.refuse_nonfinite || finite(chunk, f)) return true;
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

bool Admission::finite(const Chunk& chunk, const Frame& f) const {
  if (f.checked) return f.finite;
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
