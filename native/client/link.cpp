#include "client/link.h"

namespace mh::client {

using wire::Encoding;
using wire::Kind;

namespace {

// Updates of many chunks, and their values back where they are wanted.
struct PushErrand : Errand {
  PushErrand(const Chunks& c, const Envelope& e, const SharedValues& s, Traffic& t)
      : Errand(c.size), chunks(c), envelope(e), shared(s), traffic(t) {}

  void prepare(std::size_t i, Request& request) override {
    const std::int64_t start = chunks.starts[i];
    const auto n = static_cast<std::size_t>(chunks.counts[i]);
    envelope.address_update(request, Kind::kDelta, chunks.numbers[i], update.sequence + i, update,
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
    std::uint64_t version = reply.seen;
    if (out && shared.given()) {
      const auto n = static_cast<std::size_t>(chunks.counts[i]);
      version = shared.copy(chunks.numbers[i], n, out + chunks.starts[i]);
      traffic.pulled_bytes += n * sizeof(float);
    }
    chunks.versions[i] = static_cast<std::int64_t>(version);
  }

  const Chunks& chunks;
  const Envelope& envelope;
  const SharedValues& shared;
  Traffic& traffic;
  const float* values = nullptr;
  float* sent = nullptr;
  float* out = nullptr;
  Update update{};
  Compression compression{};
};

struct PullErrand : Errand {
  PullErrand(const Chunks& c, const Envelope& e, Traffic& t)
      : Errand(c.size), chunks(c), envelope(e), traffic(t) {}

  void prepare(std::size_t i, Request& request) override {
    envelope.address(request, Kind::kPull, chunks.numbers[i], i);
    request.header.flags = wire::with_encoding(0, encoding);
    request.out = out + chunks.starts[i];
    request.floats = static_cast<std::size_t>(chunks.counts[i]);
  }

  void answered(std::size_t i, const Request&, const wire::Header& reply) override {
    traffic.pulled_bytes += reply.payload_bytes;
    chunks.versions[i] = static_cast<std::int64_t>(reply.seen);
  }

  const Chunks& chunks;
  const Envelope& envelope;
  Traffic& traffic;
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
    version = reply.seen;
  }
  const Prepare& prepare_request;
  Traffic& traffic;
  std::uint64_t version = 0;
};

void require_places(const SharedValues& shared, const Chunks& chunks) {
  for (std::size_t i = 0; i < chunks.size; ++i) {
    shared.require(chunks.numbers[i], static_cast<std::size_t>(chunks.counts[i]));
  }
}

void copy_all(const SharedValues& shared, const Chunks& chunks, float* out, Traffic& traffic) {
  for (std::size_t i = 0; i < chunks.size; ++i) {
    const auto n = static_cast<std::size_t>(chunks.counts[i]);
    const std::uint64_t version = shared.copy(chunks.numbers[i], n, out + chunks.starts[i]);
    chunks.versions[i] = static_cast<std::int64_t>(version);
    traffic.pulled_bytes += n * sizeof(float);
  }
}

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
  if (out && shared_.given()) require_places(shared_, chunks);
  PushErrand errand(chunks, envelope_, shared_, traffic_);
  errand.values = values;
  errand.sent = sent;
  errand.out = out;
  errand.update = update;
  errand.compression = compression;
  exchange_.run(errand);
}

void Link::pull(const Chunks& chunks, float* out, Encoding encoding) {
  if (shared_.given()) {
    require_places(shared_, chunks);
    return copy_all(shared_, chunks, out, traffic_);
  }
  PullErrand errand(chunks, envelope_, traffic_);
  errand.out = out;
  errand.encoding = encoding;
  exchange_.run(errand);
}

template <typename Prepare>
std::uint64_t Link::run_one(const Prepare& prepare) {
  OneErrand<Prepare> errand(prepare, traffic_);
  exchange_.run(errand);
  return errand.version;
}

std::uint64_t Link::push_factors(std::uint32_t chunk, const Factors& f, const Update& update,
                                 std::uint64_t seen, Encoding encoding) {
  return run_one([&](Request& request) {
    envelope_.address_update(request, Kind::kFactors, chunk, update.sequence, update, seen);
    request.header.count = f.samples;
    envelope_.attach_both(request, f.a, f.a_floats, f.d, f.d_floats, encoding);
  });
}

std::uint64_t Link::push_rows(std::uint32_t chunk, const Rows& rows, const Update& update,
                              std::uint64_t seen) {
  return run_one([&](Request& request) {
    envelope_.address_update(request, Kind::kRows, chunk, update.sequence, update, seen);
    request.header.count = rows.count;
    request.add_part(rows.numbers, rows.count * sizeof(std::uint32_t));
    request.add_part(rows.values, rows.floats * sizeof(float));
  });
}

std::uint64_t Link::set(std::uint32_t chunk, std::uint32_t array, const float* values,
                        std::size_t floats) {
  return run_one([&](Request& request) {
    envelope_.address(request, Kind::kSet, chunk, 0);
    request.header.count = array;
    envelope_.attach(request, values, floats, nullptr, Compression{});
  });
}

std::uint64_t Link::get(std::uint32_t chunk, std::uint32_t array, float* out, std::size_t floats) {
  return run_one([&](Request& request) {
    envelope_.address(request, Kind::kGet, chunk, 0);
    request.header.count = array;
    request.out = out;
    request.floats = floats;
  });
}

}  // namespace mh::client
