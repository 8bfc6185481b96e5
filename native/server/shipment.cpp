#include "server/shipment.h"

#include "server/snapshot.h"

namespace mh::server {
namespace {

constexpr std::uint64_t kTooMuch = std::uint64_t{1} << 48;

std::uint32_t mixed(std::uint32_t mark, std::uint64_t number) {
  std::uint64_t x = mark ^ (number * 0x9e3779b97f4a7c15u);
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9u;
  return static_cast<std::uint32_t>(x ^ (x >> 32));
}

}  // namespace

std::uint64_t place_of(const Span& chunks) {
  std::uint32_t mark = 0;
  if (chunks.count > 1) {
    for (const Chunk& chunk : chunks) {
      mark = mixed(mixed(mark + 1, chunk.last_lease()), chunk.version());
    }
  }
  return std::uint64_t{mark} << 32 | chunks.first->last_lease();
}

Parcel Shipped::parcel(bool with_payload) const {
  Parcel out;
  out.header = frame->header;
  out.header.flags = static_cast<std::uint8_t>((out.header.flags & 0xf0) | wire::kReplicated);
  out.header.lease = chunks.first->lease;
  out.header.seen = seen;
  out.header.place = place;
  out.header.rate = rate;
  out.header.payload_bytes = 0;
  if (with_payload) out.add(frame->payload, frame->header.payload_bytes, frame->block);
  return out;
}

void Shipment::add(const Frame* frame, const Span& chunks, float rate, std::size_t ahead) {
  const Chunk& first = *chunks.first;
  const std::uint64_t place = ahead == 0 ? place_of(chunks) : first.lease;
  all_.push_back({frame, chunks, rate, first.version() + ahead, place, {}});
  for (const Chunk& chunk : chunks) {
    if (&chunk != chunks.first) all_.back().others.push_back(chunk.version() + ahead + 1);
  }
  if (frame) bytes_ += frame->header.payload_bytes;
}

void Shipment::close() {
  for (const Shipped& s : all_) {
    for (const Chunk& chunk : s.chunks) {
      marks_[chunk.shape->slot] = {chunk.shape->slot, false, 0, 0};
    }
  }
  for (const Shipped& s : all_) {
    if (s.chunks.count == 1) continue;
    for (const Chunk& chunk : s.chunks) {
      marks_[chunk.shape->slot].owner = s.chunks.first->shape->slot;
    }
  }
  for (const Shipped& s : all_) {
    Mark& owner = marks_[marks_[s.chunks.first->shape->slot].owner];
    owner.updates += s.frame ? sizeof(wire::Header) + s.frame->header.payload_bytes : kTooMuch;
    for (const Chunk& chunk : s.chunks) {
      Mark& mark = marks_[chunk.shape->slot];
      if (mark.counted) continue;
      mark.counted = true;
      owner.snapshots +=
          sizeof(wire::Header) + snapshot_bytes(*chunk.shape, chunk.log.clients());
    }
  }
}

bool Shipment::outweighs_snapshot(const Shipped& shipped, std::uint64_t times) const {
  const Mark& owner = marks_[marks_[shipped.chunks.first->shape->slot].owner];
  return owner.updates > times * owner.snapshots;
}

}  // namespace mh::server
