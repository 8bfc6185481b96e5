// Whether this server answers a client's frame: it is the chunk's primary, under the lease that the
// frame names. 0 is no opinion.
#pragma once

#include <string>

#include "server/chunk_store.h"
#include "server/replies.h"
#include "wire/frame.h"

namespace mh::server {

inline std::string why_not_served(const Chunk& chunk, const wire::Header& header) {
  const std::string name = "Chunk " + std::to_string(chunk.shape->chunk);
  if (chunk.role != Role::kPrimary) {
    return name + " has its primary on another server; this one knows of lease " +
           std::to_string(chunk.lease) + ".";
  }
  return name + " is held under lease " + std::to_string(chunk.lease) +
         "; the frame names lease " + std::to_string(header.lease) + ".";
}

inline bool serves(const Chunk& chunk, const wire::Header& header) {
  return chunk.role == Role::kPrimary && (header.lease == 0 || header.lease == chunk.lease);
}

// False if one of these chunks is not served; then the reply says so.
inline bool serve_or_refuse(const Span& chunks, const wire::Header& header, Replies& replies,
                            std::size_t reply) {
  for (const Chunk& chunk : chunks) {
    if (serves(chunk, header)) continue;
    replies.refuse(reply, wire::Refusal::kStaleLease, why_not_served(chunk, header));
    return false;
  }
  return true;
}

}  // namespace mh::server
