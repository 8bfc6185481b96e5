// Which updates of which client a chunk has taken, so that an update sent again counts once.
//
// A client's updates to a chunk carry rising numbers. One that is not above the last was applied
// before its acknowledgement was lost. A large update is applied in pieces as it arrives; how far
// it came is kept too, so that after a broken connection it goes on where it stopped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mh::server {

// An update that is applied in pieces, from its first to its last.
struct Partial {
  std::uint64_t sequence;
  std::size_t floats;  // applied so far
  std::uint64_t step;  // its number among the chunk's updates
  double rate;
};

class SequenceLog {
 public:
  // Beyond so many clients the one that was silent for longest is forgotten.
  static constexpr std::size_t kMaxClients = 256;

  bool applied(std::uint64_t client, std::uint64_t sequence) const;
  void note_applied(std::uint64_t client, std::uint64_t sequence);

  // The last update of each client, from the one that was silent for longest; noting them in this
  // order makes an equal log.
  struct Last {
    std::uint64_t client, sequence;
  };
  std::vector<Last> last_updates() const;
  std::size_t clients() const;

  // The update if an earlier piece of it came, over this connection or a broken one, else null.
  // Valid until the log is changed.
  Partial* partial(std::uint64_t client, std::uint64_t sequence);
  Partial* begin(std::uint64_t client, const Partial& partial);

 private:
  struct Entry {
    std::uint64_t client = 0;
    std::uint64_t last = 0;  // applied in full
    bool any = false;        // `last` means something
    bool unfinished = false;  // so does `partial`
    Partial partial{};
    std::uint64_t used = 0;
  };
  const Entry* find(std::uint64_t client) const;
  Entry& entry(std::uint64_t client);

  std::vector<Entry> entries_;
  std::uint64_t clock_ = 0;
};

}  // namespace mh::server
