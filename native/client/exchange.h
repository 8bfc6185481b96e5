// Sends a call's requests and takes their answers, with a bounded number of them unanswered.
//
//   1 prepare   requests into the outbox, while the window has room
//   2 send      what the socket takes
//   3 receive   if there is nothing to send: wait for answers. If the socket takes no more: wait
//               for either direction, so that a server that stops reading until its answers are
//               read can't lock up with us
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/inbox.h"
#include "client/outbox.h"
#include "client/patience.h"
#include "client/window.h"
#include "wire/spin.h"

namespace mh::client {

class Exchange {
 public:
  // Takes over a connected stream socket and puts it into blocking mode.
  Exchange(int fd, std::size_t window, const Patience& patience);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Throws Refused once everything else was answered. Throws ConnectionLost, TimedOut or what the
  // check for signals throws at once; then no run will succeed any more.
  void run(Errand& errand);

  // Throws ConnectionLost if the server or we have hung up, a millisecond later at most; for calls
  // that send nothing.
  void require_alive();

  // A run in another thread ends with ConnectionLost.
  void hang_up();

  // Time spent waiting while there was more to send: the window was full or the server slow.
  double waited_s() const { return waited_s_; }

 private:
  void go(Errand& errand);
  void prepare(Errand& errand);
  bool send();
  void wait_for_either_direction(Errand& errand);
  void receive(Errand& errand, bool wait);
  wire::Moved wait_for_bytes();
  void take_replies(Errand& errand);
  void begin_reply();
  std::uint8_t* place_for_payload();
  void finish_reply(Errand& errand);
  void place_values(const Request& request);
  void place_rows(const Request& request);
  void note_refusal(Errand& errand);
  [[noreturn]] void lose(const std::string& why);
  [[noreturn]] void lose_over_reply(const std::string& why);

  const int fd_;
  Patience patience_;
  Window window_;
  Outbox outbox_;
  Inbox inbox_;
  wire::Spin spin_;
  bool broken_ = false;
  int send_error_ = 0;
  Patience::Clock::time_point seen_alive_{};

  bool in_reply_ = false;  // its header was taken, its payload is not complete
  wire::Header reply_;
  std::size_t reply_to_ = Window::kNone;
  std::vector<std::uint8_t> scratch_;  // sentences, rows and encoded values
  std::vector<float> row_values_;
  std::optional<Refused> refused_;     // the first of a run, or the first but for stale leases
  double waited_s_ = 0.0;
};

}  // namespace mh::client
