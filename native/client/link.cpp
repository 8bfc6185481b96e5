#include "client/link.h"

#include <algorithm>
#include <optional>
#include <string>

namespace mh::client {

using wire::Encoding;
using wire::Kind;

namespace {

// Notes what becomes of each chunk. What the server's memory no longer holds under the lease is
// refused here, as the server would refuse it.
struct ChunkErrand : Errand {
  ChunkErrand(const Chunks& c, const Envelope& e, const SharedValues& s, Traffic& t)
      : Errand(c.size), chunks(c), envelope(e), shared(s), traffic(t) {
    if (!chunks.outcomes) return;
    std::fill_n(chunks.outcomes, chunks.size, static_cast<std::int8_t>(kUnanswered));
  }

  void carried_out(std::size_t i, std::uint64_t version) {
    chunks.versions[i] = static_cast<std::int64_t>(version);
    if (chunks.outcomes) chunks.outcomes[i] = kCarriedOut;
  }

  void refused(std::size_t i, std::uint32_t code) override {
    if (!chunks.outcomes) return;
    chunks.outcomes[i] = static_cast<std::int8_t>(-static_cast<int>(std::min(code, 127u)));
  }

  void copy(std::size_t i, float* out) {
    const auto n = static_cast<std::size_t>(chunks.counts[i]);
    const Address at = chunks.address(i);
    const auto version = shared.copy(at.chunk, at.lease, n, out + chunks.starts[i]);
    if (!version) return moved(i, at);
    traffic.pulled_bytes += n * sizeof(float);
    carried_out(i, *version);
  }

  void moved(std::size_t i, const Address& at) {
    const auto code = static_cast<std::uint32_t>(wire::Refusal::kStaleLease);
    if (!stale) stale.emplace(code, at.chunk, moved_sentence(at));
    refused(i, code);
  }

  void require_places() const {
    for (std::size_t i = 0; i < chunks.size; ++i) {
      shared.require(chunks.numbers[i], static_cast<std::size_t>(chunks.counts[i]));
    }
  }

  void end() const {
    if (stale) throw Refused(*stale);
  }

  static std::string moved_sentence(const Address& at) {
    return "Chunk " + std::to_string(at.chunk) + " is not held under lease " +
           std::to_string(at.lease) + ", says the server's memory.";
  }

  const Chunks& chunks;
  const Envelope& envelope;
  const SharedValues& shared;
  Traffic& traffic;
  std::optional<Refused> stale;  // the first
};

// Updates of many chunks, and their values back where they are wanted.
struct PushErrand : ChunkErrand {
  using ChunkErrand::ChunkErrand;

  void prepare(std::size_t i, Request& request) override {
    const std::int64_t start = chunks.starts[i];
    const auto n = static_cast<std::size_t>(chunks.counts[i]);
    envelope.address_update(request, Kind::kDelta, chunks.address(i),
                            update.sequence + i * update.rise, update,
                            static_cast<std::uint64_t>(chunks.versions[i]));
    if (out && !shared.given()) {
      request.header.flags |= wire::kWantValues;
      request.out = out + start;
      request.floats = n;
    }
    envelope.attach(request, values + start, n, sent ? sent + start : nullptr, compression);
  }

  void answered(std::size_t i, const Request& request, const wire::Header& reply) override {
    traffic.pushed_bytes += request.header.payload_bytes;
    traffic.pulled_bytes += reply.payload_bytes;
    // An update whose values can't be copied any more counts as refused: sent again to where the
    // chunk went, it is recognised, and the values come from there.
    if (out && shared.given()) return copy(i, out);
    carried_out(i, reply.seen);
  }

  const float* values = nullptr;
  float* sent = nullptr;
  float* out = nullptr;
  Update update{};
  Compression compression{};
};

struct PullErrand : ChunkErrand {
  using ChunkErrand::ChunkErrand;

  void prepare(std::size_t i, Request& request) override {
    envelope.address(request, Kind::kPull, chunks.address(i), i);
    request.header.flags = wire::with_encoding(0, encoding);
    request.out = out + chunks.starts[i];
    request.floats = static_cast<std::size_t>(chunks.counts[i]);
  }

  void answered(std::size_t i, const Request&, const wire::Header& reply) override {
    traffic.pulled_bytes += reply.payload_bytes;
    carried_out(i, reply.seen);
  }

  void copy_all() {
    for (std::size_t i = 0; i < chunks.size; ++i) copy(i, out);
  }

  float* out = nullptr;
  Encoding encoding{};
};

struct PushRowsErrand : ChunkErrand {
  using ChunkErrand::ChunkErrand;

  void prepare(std::size_t i, Request& request) override {
    const auto n = static_cast<std::size_t>(chunks.counts[i]);
    envelope.address_update(request, Kind::kRows, chunks.address(i), update.sequence, update,
                            static_cast<std::uint64_t>(chunks.versions[i]));
    request.header.count = static_cast<std::uint32_t>(n);
    request.add_part(rows.numbers + chunks.starts[i], n * sizeof(std::uint32_t));
    request.add_part(rows.values + rows.value_starts[i],
                     n * static_cast<std::size_t>(rows.widths[i]) * sizeof(float));
  }

  void answered(std::size_t i, const Request& request, const wire::Header& reply) override {
    traffic.pushed_bytes += request.header.payload_bytes;
    carried_out(i, reply.seen);
  }

  Rows rows{};
  Update update{};
};

struct PullRowsErrand : ChunkErrand {
  using ChunkErrand::ChunkErrand;

  std::size_t width(std::size_t i) const { return static_cast<std::size_t>(known.widths[i]); }
  std::size_t rows(std::size_t i) const {
    return static_cast<std::size_t>(chunks.counts[i]) / width(i);
  }

  void prepare(std::size_t i, Request& request) override {
    envelope.address(request, Kind::kPullRows, chunks.address(i), i);
    request.header.flags = wire::with_encoding(0, encoding);
    request.header.seen = static_cast<std::uint64_t>(chunks.versions[i]);
    request.header.place = static_cast<std::uint64_t>(known.eras[i]);
    request.out = out + chunks.starts[i];
    request.floats = static_cast<std::size_t>(chunks.counts[i]);
    request.row_floats = width(i);
    request.changed = known.changed + known.row_starts[i];
  }

  void answered(std::size_t i, const Request& request, const wire::Header& reply) override {
    traffic.pulled_bytes += reply.payload_bytes;
    const bool whole = static_cast<Kind>(reply.kind) == Kind::kValues;
    if (whole) std::fill_n(request.changed, rows(i), std::uint8_t{1});
    note(i, reply.seen, reply.place);
  }

  void copy_all() {
    for (std::size_t i = 0; i < chunks.size; ++i) copy_rows(i);
  }

  void copy_rows(std::size_t i) {
    const Address at = chunks.address(i);
    const SharedValues::Known since{static_cast<std::uint64_t>(known.eras[i]),
                                    static_cast<std::uint64_t>(chunks.versions[i])};
    const auto copied = shared.copy_rows(at.chunk, at.lease, rows(i), width(i), since,
                                         out + chunks.starts[i],
                                         known.changed + known.row_starts[i]);
    if (!copied) return moved(i, at);
    traffic.pulled_bytes += copied->rows * width(i) * sizeof(float);
    note(i, copied->now.version, copied->now.era);
  }

  void require_row_places() const {
    for (std::size_t i = 0; i < chunks.size; ++i) {
      shared.require_rows(chunks.numbers[i], rows(i), width(i));
    }
  }

  void note(std::size_t i, std::uint64_t version, std::uint64_t era) {
    known.eras[i] = static_cast<std::int64_t>(era);
    carried_out(i, version);
  }

  KnownRows known{};
  float* out = nullptr;
  Encoding encoding{};
};

// A single request, prepared by a function.
template <typename Prepare>
struct OneErrand : Errand {
  OneErrand(const Prepare& p, Traffic& t) : Errand(1), prepare_request(p), traffic(t) {}
  void prepare(std::size_t, Request& request) override { prepare_request(request); }
  void answered(std::size_t, const Request& request, const wire::Header& reply) override {
    traffic.pushed_bytes += request.header.payload_bytes;
    traffic.pulled_bytes += reply.payload_bytes;
    state = {reply.seen, reply.steps};
  }
  void refused(std::size_t, std::uint32_t) override {}
  const Prepare& prepare_request;
  Traffic& traffic;
  ChunkState state;
};

}  // namespace

Link::Link(int fd, const LinkSettings& settings)
    : exchange_(fd, settings.window, Patience(settings.timeout_s, settings.check_signals)),
      envelope_(settings.client, settings.own),
      shared_(settings.values.data, settings.values.bytes) {}

void Link::push(const Chunks& chunks, const float* values, float* sent, const Update& update,
                const Compression& compression) {
  push_pull(chunks, values, sent, nullptr, update, compression);
}

void Link::push_pull(const Chunks& chunks, const float* values, float* sent, float* out,
                     const Update& update, const Compression& compression) {
  PushErrand errand(chunks, envelope_, shared_, traffic_);
  if (out && shared_.given()) errand.require_places();
  errand.values = values;
  errand.sent = sent;
  errand.out = out;
  errand.update = update;
  errand.compression = compression;
  exchange_.run(errand);
  errand.end();
}

void Link::pull(const Chunks& chunks, float* out, Encoding encoding) {
  PullErrand errand(chunks, envelope_, shared_, traffic_);
  errand.out = out;
  errand.encoding = encoding;
  if (!shared_.given()) return exchange_.run(errand);
  errand.require_places();
  exchange_.require_alive();  // the memory of a server that is gone stays as it was
  errand.copy_all();
  errand.end();
}

template <typename Prepare>
ChunkState Link::run_one(const Prepare& prepare) {
  OneErrand<Prepare> errand(prepare, traffic_);
  exchange_.run(errand);
  return errand.state;
}

std::uint64_t Link::push_factors(const Address& chunk, const Factors& f, const Update& update,
                                 std::uint64_t seen, Encoding encoding) {
  return run_one([&](Request& request) {
    envelope_.address_update(request, Kind::kFactors, chunk, update.sequence, update, seen);
    request.header.count = f.samples;
    envelope_.attach_both(request, f.a, f.a_floats, f.d, f.d_floats, encoding);
  }).version;
}

void Link::push_rows(const Chunks& chunks, const Rows& rows, const Update& update) {
  PushRowsErrand errand(chunks, envelope_, shared_, traffic_);
  errand.rows = rows;
  errand.update = update;
  exchange_.run(errand);
}

void Link::pull_rows(const Chunks& chunks, const KnownRows& known, float* out,
                     Encoding encoding) {
  PullRowsErrand errand(chunks, envelope_, shared_, traffic_);
  errand.known = known;
  errand.out = out;
  errand.encoding = encoding;
  if (!shared_.given()) return exchange_.run(errand);
  errand.require_row_places();
  exchange_.require_alive();
  errand.copy_all();
  errand.end();
}

std::uint64_t Link::set(const Address& chunk, std::uint32_t array, const float* values,
                        std::size_t floats, std::uint64_t sequence, std::uint32_t updates) {
  return run_one([&](Request& request) {
    envelope_.address(request, Kind::kSet, chunk, sequence);
    request.header.count = array;
    request.header.steps = updates;
    envelope_.attach(request, values, floats, nullptr, Compression{});
  }).version;
}

ChunkState Link::get(const Address& chunk, std::uint32_t array, float* out, std::size_t floats) {
  return run_one([&](Request& request) {
    envelope_.address(request, Kind::kGet, chunk, 0);
    request.header.count = array;
    request.out = out;
    request.floats = floats;
  });
}

}  // namespace mh::client
