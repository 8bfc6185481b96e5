// Stage 1 of a lane's round: bytes from a socket become checked frames.
//
// Small frames are read many at a time into one buffer and used where they lie. The payload of a
// large one goes from the socket straight into a block of its own; unless it must be checked as a
// whole first, it is handed on in pieces that are still in the cache when they are applied. A
// connection never holds more than that buffer and one block.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/decoder.h"
#include "server/lane_context.h"
#include "server/ledger.h"
#include "server/shared_memory.h"

namespace mh::server {

constexpr std::size_t kInboxBytes = std::size_t{256} << 10;
constexpr std::size_t kPieceBytes = std::size_t{256} << 10;  // no less than the inbox holds
constexpr std::size_t kMaxFrames = 256;  // of one connection in one round; bounds the replies too

// One request, checked against the layout, its payload where it lies until the round ends.
struct Frame {
  wire::Header header;
  const ChunkShape* shape = nullptr;  // null: refused
  const std::uint8_t* payload = nullptr;
  std::shared_ptr<Block> block;  // of a large payload: who keeps it keeps the payload
  // The part of the chunk that the payload covers; anything but a piece of a delta covers it all.
  std::size_t first = 0, floats = 0;
  bool piece = false;    // of a delta that is applied as it arrives
  bool last = true;      // of an update's pieces
  bool replay = false;   // was applied before; its payload is not here
  bool finite = true;    // false: seen not to be while it arrived
  bool checked = false;  // `finite` was found out
  wire::Refusal refusal{};
  std::string sentence;  // why it was refused
};

class Receiver {
 public:
  Receiver(int fd, const Sender& sender, ClientMemory memory, LaneContext& context);
  ~Receiver();

  // Forgets the last round's frames and reads what is there, without waiting.
  void receive();
  const std::vector<Frame>& frames() const { return frames_; }
  // The frames were applied: their payloads may go.
  void release();
  // What the peer has posted as a frame, if it is sound.
  std::optional<Frame> checked(const Posted& posted) const;

  // Frames are left from the last read, so that the next round need not wait for the socket.
  bool more() const;
  bool closed() const { return closed_; }      // by the peer, or broken
  bool ending() const { return ending_; }      // a bad frame came: whatever follows is thrown away
  const Sender& sender() const { return sender_; }
  const std::shared_ptr<const ClientMemory>& memory() const { return memory_; }
  // Payloads by reference lie there from now on.
  void share(ClientMemory memory);

 private:
  // A payload too large for the inbox, on its way into a block.
  struct Large {
    wire::Header header;
    const ChunkShape* shape = nullptr;  // null: none
    bool pieces = false;   // handed on before it is whole
    bool checked = false;  // whether it is finite is found out while it arrives
    std::size_t start = 0;   // of the block's contents, in the payload
    std::size_t filled = 0;  // bytes of the block
    bool finite = true;
    Block block;
  };

  void read_inbox();
  void parse_inbox();
  bool skip();
  bool take(const wire::Header& header);
  void take_whole(const wire::Header& header, const ChunkShape& shape);
  const std::uint8_t* referred(const wire::Header& header, const std::uint8_t* here,
                               Frame& frame) const;
  void take_replay(const wire::Header& header, const ChunkShape& shape);
  void refuse(const wire::Header& header, Verdict verdict);
  void begin_large(const wire::Header& header, const ChunkShape& shape);
  void fill_large();
  bool read_large(std::size_t wanted);
  void check_arrived(std::size_t from, std::size_t to);
  void hand_on_large(std::size_t wanted);
  void compact();
  std::size_t read(iovec* parts, std::size_t count);

  int fd_;
  Sender sender_;
  std::shared_ptr<const ClientMemory> memory_;
  LaneContext& context_;

  Block inbox_;
  std::size_t begin_ = 0, end_ = 0;  // of the bytes not yet parsed
  std::size_t skip_left_ = 0;        // bytes of a refused payload still to come
  bool incomplete_ = false;          // the frame at begin_ is not all here
  bool expect_large_ = false;        // the last one was: read the next header alone
  Large large_;
  std::vector<Frame> frames_;
  bool closed_ = false, ending_ = false;
};

}  // namespace mh::server
