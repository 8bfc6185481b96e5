#include "server/sequence_log.h"

#include <algorithm>

namespace mh::server {

const SequenceLog::Entry* SequenceLog::find(std::uint64_t client) const {
  for (const Entry& e : entries_) {
    if (e.client == client) return &e;
  }
  return nullptr;
}

SequenceLog::Entry& SequenceLog::entry(std::uint64_t client) {
  Entry* found = const_cast<Entry*>(find(client));
  if (!found && entries_.size() < kMaxClients) {
    found = &entries_.emplace_back();
  } else if (!found) {
    found = &*std::min_element(entries_.begin(), entries_.end(),
                               [](const Entry& a, const Entry& b) { return a.used < b.used; });
    *found = Entry{};
  }
  found->client = client;
  found->used = ++clock_;
  return *found;
}

bool SequenceLog::applied(std::uint64_t client, std::uint64_t sequence) const {
  const Entry* e = find(client);
  return e && e->any && sequence <= e->last;
}

void SequenceLog::note_applied(std::uint64_t client, std::uint64_t sequence) {
  Entry& e = entry(client);
  e.last = sequence;
  e.any = true;
  e.unfinished = false;
}

std::vector<SequenceLog::Last> SequenceLog::last_updates() const {
  std::vector<const Entry*> ordered;
  for (const Entry& e : entries_) {
    if (e.any) ordered.push_back(&e);
  }
  std::sort(ordered.begin(), ordered.end(),
            [](const Entry* a, const Entry* b) { return a->used < b->used; });
  std::vector<Last> out;
  for (const Entry* e : ordered) out.push_back({e->client, e->last});
  return out;
}

std::size_t SequenceLog::clients() const {
  return static_cast<std::size_t>(
      std::count_if(entries_.begin(), entries_.end(), [](const Entry& e) { return e.any; }));
}

Partial* SequenceLog::partial(std::uint64_t client, std::uint64_t sequence) {
  Entry* e = const_cast<Entry*>(find(client));
  if (!e || !e->unfinished || e->partial.sequence != sequence) return nullptr;
  e->used = ++clock_;
  return &e->partial;
}

Partial* SequenceLog::begin(std::uint64_t client, const Partial& partial) {
  Entry& e = entry(client);
  e.partial = partial;
  e.unfinished = true;
  return &e.partial;
}

}  // namespace mh::server
