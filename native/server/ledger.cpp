#include "server/ledger.h"

#include <algorithm>

namespace mh::server {
namespace {

constexpr std::uint64_t kCount = 0xffffffffu;

std::size_t bytes_for(std::size_t slots) {
  return ShownMemory::kBegin + slots * sizeof(LedgerPage);
}

LedgerPage& page_at(std::uint8_t* memory, std::size_t slot) {
  return reinterpret_cast<LedgerPage*>(memory + ShownMemory::kBegin)[slot];
}

// The other end is not to be trusted with the length of our array.
std::size_t count_of(std::uint64_t state) {
  return std::min<std::size_t>(state & kCount, LedgerPage::kRoom);
}

}  // namespace

Ledger::Ledger(std::size_t slots) : memory_(bytes_for(slots), Writers::kAnyone) {}

LedgerPage& Ledger::page(const Chunk& chunk) const {
  return page_at(memory_.data(), chunk.shape->slot);
}

void Ledger::open(const Chunk& chunk) {
  LedgerPage& page = this->page(chunk);
  page.chunk = chunk.shape->chunk;
  __atomic_store_n(&page.state, std::uint64_t{chunk.lease} << 32, __ATOMIC_RELEASE);
}

std::size_t Ledger::count(const Chunk& chunk) const {
  return count_of(__atomic_load_n(&page(chunk).state, __ATOMIC_ACQUIRE));
}

std::size_t Ledger::close(const Chunk& chunk) {
  return count_of(__atomic_exchange_n(&page(chunk).state, 0, __ATOMIC_ACQ_REL));
}

std::unique_ptr<Postbox> Postbox::find(const wire::Header& answer, std::size_t slots) {
  if (answer.seen < bytes_for(slots)) return nullptr;
  std::optional<ClientMemory> found = find_shown(answer, Access::kWrite);
  return found ? std::unique_ptr<Postbox>(new Postbox(std::move(*found))) : nullptr;
}

bool Postbox::post(const Chunk& chunk, const Posted& update) {
  LedgerPage& page = page_at(memory_.writable(), chunk.shape->slot);
  std::uint64_t state = __atomic_load_n(&page.state, __ATOMIC_ACQUIRE);
  const std::size_t count = state & kCount;
  if (state >> 32 != chunk.lease || count >= LedgerPage::kRoom) return false;
  if (page.chunk != chunk.shape->chunk) return false;
  page.posted[count] = update;
  return __atomic_compare_exchange_n(&page.state, &state, state + 1, /*weak=*/false,
                                     __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

}  // namespace mh::server
