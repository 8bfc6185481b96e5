// Python's way to the server of chunks: what it holds, who may come in, and what it counted.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "server/server.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace mh {
namespace {

using server::ChunkServer;

const char* const kRefusalNames[server::kRefusals] = {
    "",           "unknown_chunk", "wrong_size", "not_finite", "stale_lease", "wrong_lane",
    "malformed",  "too_large",     "version",    "stranger",   "not_allowed", "out_of_step",
};
const char* const kEventNames[] = {"in_step", "peer_lost", "fenced"};

void construct(ChunkServer* self, std::uint32_t lanes, std::size_t max_payload_bytes,
               bool refuse_nonfinite, const std::string& staleness, bool pin, bool replicated) {
  if (staleness != "ignore" && staleness != "scale") {
    throw std::invalid_argument("staleness is '" + staleness + "'; expected ignore or scale.");
  }
  new (self) ChunkServer(
      lanes, {max_payload_bytes, refuse_nonfinite, staleness == "scale", pin, replicated});
}

void add_chunk(ChunkServer& self, std::uint32_t chunk, std::uint32_t lane, std::uint32_t parameter,
               std::uint32_t first_row, std::uint32_t rows, std::uint32_t row_floats,
               const Rule& rule, const std::vector<float>& state_starts, std::uint32_t lease,
               bool by_rows) {
  const auto states = static_cast<std::uint32_t>(state_starts.size());
  server::ChunkShape shape{chunk, lane, parameter, first_row, rows, row_floats, lease, states};
  shape.by_rows = by_rows;
  self.add_chunk(shape, {rule, state_starts});
}

void adopt(ChunkServer& self, int fd, std::uint32_t lane, std::uint64_t client, bool admin,
           int shared_fd, std::uint64_t shared_bytes, int peer) {
  const nb::gil_scoped_release release;
  self.adopt(fd, {client, lane, admin, shared_bytes, peer}, shared_fd);
  if (shared_fd >= 0) close(shared_fd);
}

server::Role role_of(const std::string& name) {
  if (name == "primary") return server::Role::kPrimary;
  if (name == "mirror") return server::Role::kMirror;
  if (name == "none") return server::Role::kNone;
  throw std::invalid_argument("The role is '" + name + "'; expected primary, mirror or none.");
}

void hold(ChunkServer& self, const std::vector<std::uint32_t>& chunks, const std::string& role,
          std::uint32_t lease, const std::vector<int>& mirrors,
          const std::vector<std::pair<int, std::int64_t>>& joining) {
  server::HoldOrder order{{}, role_of(role), lease, mirrors, {}};
  for (const auto& [peer, since] : joining) order.joining.push_back({peer, since});
  const nb::gil_scoped_release release;
  self.hold(chunks, order);
}

// What the lanes are asked; they may end meanwhile.
template <typename Question>
auto ask(const Question& question) {
  const nb::gil_scoped_release release;
  try {
    return question();
  } catch (const std::future_error&) {
    throw std::invalid_argument("The server stopped before it answered.");
  }
}

nb::object collect(ChunkServer& self, std::uint32_t chunk, std::int64_t since) {
  const std::vector<std::uint8_t> taken = ask([&] { return self.collect(chunk, since); });
  if (taken.empty()) return nb::none();
  return nb::bytes(taken.data(), taken.size());
}

void restore(ChunkServer& self, std::uint32_t chunk, const nb::bytes& snapshot,
             std::uint32_t lease) {
  const auto* data = static_cast<const std::uint8_t*>(snapshot.data());
  ask([&] { self.restore(chunk, data, snapshot.size(), lease); });
}

nb::list wait_events(ChunkServer& self, double timeout_s) {
  const double longest = std::min(std::max(timeout_s, 0.0), 1e6);
  nb::list out;
  for (const server::Event& event : ask([&] { return self.wait_events(longest); })) {
    const char* const name = kEventNames[static_cast<std::size_t>(event.kind)];
    out.append(nb::make_tuple(name, event.first, event.second, event.third));
  }
  return out;
}

nb::object progress(const ChunkServer& self) {
  const std::vector<ChunkServer::Progress> held = self.progress();
  auto* const rows = new std::int64_t[3 * held.size() + 1];
  const nb::capsule owner(rows, [](void* p) noexcept { delete[] static_cast<std::int64_t*>(p); });
  for (std::size_t i = 0; i < held.size(); ++i) {
    rows[3 * i] = held[i].chunk;
    rows[3 * i + 1] = held[i].last_lease;
    rows[3 * i + 2] = static_cast<std::int64_t>(held[i].version);
  }
  return nb::cast(nb::ndarray<nb::numpy, std::int64_t>(rows, {held.size(), 3}, owner));
}

nb::tuple place_of(const ChunkServer& self, std::uint32_t chunk) {
  const server::Place place = self.place_of(chunk);
  return nb::make_tuple(place.weights, place.version);
}

nb::dict stats(const ChunkServer& self) {
  const server::Totals t = self.totals();
  nb::dict refused, out;
  for (std::size_t i = 1; i < server::kRefusals; ++i) {
    if (t.refused[i] > 0) refused[kRefusalNames[i]] = t.refused[i];
  }
  nb::list staleness;
  for (const std::uint64_t count : t.staleness) staleness.append(count);
  out["updates"] = t.updates;
  out["pushed_bytes"] = t.pushed_bytes;
  out["pulled_bytes"] = t.pulled_bytes;
  out["frames"] = t.frames;
  out["refused"] = refused;
  out["replays"] = t.replays;
  out["staleness"] = staleness;
  out["busy_s"] = static_cast<double>(t.busy_ns) * 1e-9;
  out["rounds"] = t.rounds;
  out["batched_max"] = t.batched_max;
  out["connections"] = t.connections;
  out["waiting_bytes"] = t.waiting_bytes;
  out["blocked_replies"] = t.blocked_replies;
  out["replicated_updates"] = t.replicated_updates;
  out["replicated_bytes"] = t.replicated_bytes;
  out["snapshots_sent"] = t.snapshots_sent;
  out["late_updates"] = t.late_updates;
  out["posted_updates"] = t.posted_updates;
  out["held_replies"] = t.held_replies;
  return out;
}

}  // namespace

void bind_server(nb::module_& m) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<ChunkServer>(m, "ChunkServer")
      .def("__init__", &construct, nb::kw_only(), "lanes"_a,
           "max_payload_bytes"_a = std::size_t{64} << 20, "refuse_nonfinite"_a = true,
           "staleness"_a = "ignore", "pin"_a = true, "replicated"_a = false)
      .def("add_chunk", &add_chunk, "chunk"_a, nb::kw_only(), "lane"_a, "parameter"_a,
           "first_row"_a, "rows"_a, "row_floats"_a, "rule"_a, "state_starts"_a, "lease"_a = 0,
           "by_rows"_a = false)
      .def("start", &ChunkServer::start, release())
      .def("stop", &ChunkServer::stop, release())
      .def("adopt", &adopt, "fd"_a, nb::kw_only(), "lane"_a, "client"_a, "admin"_a = false,
           "shared_fd"_a = -1, "shared_bytes"_a = 0, "peer"_a = -1)
      .def("hold", &hold, "chunks"_a, nb::kw_only(), "role"_a, "lease"_a,
           "mirrors"_a = std::vector<int>(),
           "joining"_a = std::vector<std::pair<int, std::int64_t>>())
      .def("adopt_peer", &ChunkServer::adopt_peer, "fd"_a, nb::kw_only(), "lane"_a, "peer"_a,
           release())
      .def("drop_peer", &ChunkServer::drop_peer, "peer"_a, release())
      .def("mute_peer", &ChunkServer::mute_peer, "peer"_a, "on"_a, release())
      .def("wait_events", &wait_events, "timeout_s"_a)
      .def("lagging", [](ChunkServer& self) { return ask([&] { return self.lagging(); }); })
      .def("progress", &progress)
      .def("collect", &collect, "chunk"_a, nb::kw_only(), "since"_a = -1)
      .def("restore", &restore, "chunk"_a, "snapshot"_a, "lease"_a)
      .def("place_of", &place_of, "chunk"_a)
      .def("stats", &stats)
      .def_prop_ro("memory_fd", &ChunkServer::memory_fd)
      .def_prop_ro("memory_bytes", &ChunkServer::memory_bytes);
}

}  // namespace mh
