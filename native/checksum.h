// CRC-32C (Castagnoli) of stored records. A processor that has an instruction for it takes eight
// bytes at a time, so that checking costs little beside copying; others use tables.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mh {

// The checksum of `size` bytes, going on from that of what came before them (0 at the beginning).
std::uint32_t crc32c(const std::uint8_t* data, std::size_t size, std::uint32_t before);

}  // namespace mh
