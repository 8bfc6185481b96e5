// Where the copies of a chunk stand, as its primary knows it, and what waits for them.
//
// Docs: docs/protocol.md. A *position* is (the lease under which the last update was applied, how
// many updates there were). In one lease one primary orders a chunk's updates, so equal positions
// mean equal contents. The copies that a placement names are required: what they have not
// acknowledged is acknowledged to nobody.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace mh::server {

enum class Role : std::uint8_t { kNone, kMirror, kPrimary };

// Of one copy, seen from the primary.
enum class Standing : std::uint8_t {
  kOut,     // unknown: there is no connection
  kAsked,   // an Align is on its way
  kBehind,  // a snapshot is due
  kInStep,  // everything was sent
};

// A copy that is being filled, and the placement in which that began: another one is another copy.
struct Joining {
  int peer;
  std::int64_t since;
};

struct Copy {
  int peer;
  bool mirror = false;     // else it is joining
  std::int64_t since = 0;  // of a joining one
  // It must have an update before anybody hears that the update is safe. A mirror always; a joining
  // one from the moment in which it is sent all there is.
  bool required = false;
  // A joining one said that it has all there is, and that was told: it may be made a mirror at any
  // time, so that it is required whatever happens, until it is no longer listed.
  bool promised = false;
  // Updates are sent while it is asked. A mirror is most likely where the primary is and need not
  // be kept waiting for its answer.
  bool eager = false;
  Standing standing = Standing::kOut;
  // Answers to what was sent in an earlier turn mean nothing any more. Never the same twice.
  std::uint64_t turn = 0;
  std::uint64_t acked = 0;  // the version that it is known to have; 0: nothing is known
  std::uint32_t under_way = 0;  // frames of this turn that it has not answered
  bool folding = false;         // behind, and its snapshot waits for those answers
  std::uint32_t late = 0;       // updates since the last frame that may not wait

  // Whether updates are sent to it as they come.
  bool streams() const {
    return standing == Standing::kInStep || (standing == Standing::kAsked && eager);
  }
  bool always_required() const { return mirror || promised; }

  // What was known of it is known no longer.
  void begin_turn(std::uint64_t number, Standing at) {
    standing = at;
    turn = number;
    acked = 0;
    under_way = 0;
    late = 0;
    folding = false;
    required = always_required();
  }
};

class Copies {
 public:
  // From now on these. What is known of a copy stays known, unless all begins anew.
  void list(const std::vector<int>& mirrors, const std::vector<Joining>& joining, bool anew) {
    std::vector<Copy> before;
    before.swap(copies_);
    if (anew) before.clear();
    for (const int peer : mirrors) add_mirror(before, peer);
    for (const Joining& copy : joining) add_joining(before, copy);
  }
  void clear() { copies_.clear(); }

  Copy* find(int peer) {
    for (Copy& copy : copies_) {
      if (copy.peer == peer) return &copy;
    }
    return nullptr;
  }
  bool empty() const { return copies_.empty(); }
  std::vector<Copy>& all() { return copies_; }
  const std::vector<Copy>& all() const { return copies_; }

  // The version up to which every required copy has everything.
  std::uint64_t committed() const {
    std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
    for (const Copy& copy : copies_) {
      if (copy.required && copy.acked < least) least = copy.acked;
    }
    return least;
  }

 private:
  void add_mirror(const std::vector<Copy>& before, int peer) {
    if (find(peer)) return;
    Copy copy{peer};
    for (const Copy& known : before) {
      if (known.peer == peer) copy = known;
    }
    copy.mirror = copy.required = true;
    copies_.push_back(copy);
  }

  void add_joining(const std::vector<Copy>& before, const Joining& joining) {
    if (find(joining.peer)) return;
    Copy copy{joining.peer, false, joining.since};
    for (const Copy& known : before) {
      const bool same = known.peer == joining.peer && known.since == joining.since;
      if (same && !known.mirror) copy = known;
    }
    copies_.push_back(copy);
  }

  std::vector<Copy> copies_;
};

// A held reply of a chunk, and the version that it waits for.
struct Waiting {
  std::uint64_t version;
  std::uint32_t reply;  // its number among the held ones
  std::int64_t since_ns;
};

}  // namespace mh::server
