// Python's way to the server of chunks: what it holds, who may come in, and what it counted.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bindings.h"
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

void construct(ChunkServer* self, std::uint32_t lanes, std::size_t max_payload_bytes,
               bool refuse_nonfinite, const std::string& staleness, bool pin) {
  if (staleness != "ignore" && staleness != "scale") {
    throw std::invalid_argument("staleness is '" + staleness + "'; expected ignore or scale.");
  }
  new (self) ChunkServer(lanes, {max_payload_bytes, refuse_nonfinite, staleness == "scale", pin});
}

void add_chunk(ChunkServer& self, std::uint32_t chunk, std::uint32_t lane, std::uint32_t parameter,
               std::uint32_t first_row, std::uint32_t rows, std::uint32_t row_floats,
               const Rule& rule, const std::vector<float>& state_starts, std::uint32_t lease) {
  const auto states = static_cast<std::uint32_t>(state_starts.size());
  self.add_chunk({chunk, lane, parameter, first_row, rows, row_floats, lease, states},
                 {rule, state_starts});
}

void adopt(ChunkServer& self, int fd, std::uint32_t lane, std::uint64_t client, bool admin,
           int shared_fd, std::uint64_t shared_bytes) {
  const nb::gil_scoped_release release;
  self.adopt(fd, {client, lane, admin, shared_bytes}, shared_fd);
  if (shared_fd >= 0) close(shared_fd);
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
  return out;
}

}  // namespace

void bind_server(nb::module_& m) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<ChunkServer>(m, "ChunkServer")
      .def("__init__", &construct, nb::kw_only(), "lanes"_a,
           "max_payload_bytes"_a = std::size_t{64} << 20, "refuse_nonfinite"_a = true,
           "staleness"_a = "ignore", "pin"_a = true)
      .def("add_chunk", &add_chunk, "chunk"_a, nb::kw_only(), "lane"_a, "parameter"_a,
           "first_row"_a, "rows"_a, "row_floats"_a, "rule"_a, "state_starts"_a, "lease"_a = 0)
      .def("start", &ChunkServer::start, release())
      .def("stop", &ChunkServer::stop, release())
      .def("adopt", &adopt, "fd"_a, nb::kw_only(), "lane"_a, "client"_a, "admin"_a = false,
           "shared_fd"_a = -1, "shared_bytes"_a = 0)
      .def("disconnect", &ChunkServer::disconnect, "client"_a, release())
      .def("place_of", &place_of, "chunk"_a)
      .def("stats", &stats)
      .def_prop_ro("memory_fd", &ChunkServer::memory_fd)
      .def_prop_ro("memory_bytes", &ChunkServer::memory_bytes);
}

}  // namespace mh
