"""Seconds from the SIGKILL of a primary to the next acknowledged push of what it served.

Three servers with three copies of every bucket and the default settings. Again and again the one
that serves most is killed while a replica pushes to all of them; it is started again once its
buckets are served by others. Every second time the controller is told who died, as a driver does
that sees a process end; else the cluster has to notice by itself. The replica computes all the
while: its steps in the second after the kill, beside those before it, show whether computing waits
for any of this.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.contestants.fleet import Access, Fleet
from benchmarks.harness.crew import Crew
from benchmarks.harness.report import picture, print_table, with_spread
from benchmarks.harness.rounds import Spread, progress
from manyhands.parameter_server.shard_map import ParameterSpec

PARAMETERS = (
    ParameterSpec("first", (400, 784)),
    ParameterSpec("second", (400, 400)),
    ParameterSpec("bias", (400,)),
)
SERVERS = COPIES = 3
CHUNK_BYTES = 1 << 18
ALONE, TOLD = "noticed", "told"
TITLES = {ALONE: "noticed by the controller", TOLD: "told by the driver"}
AIM_S = 1.0
PATIENCE_S = 60.0
PEACE_S = 0.7  # before the kill
LOOKED_AT_S = 1.0  # after it
AFTER_S = 1.3
BATCH = 20


@dataclass(frozen=True)
class Plan:
    """What a run measures."""

    kills: int


QUICK = Plan(kills=6)
FULL = Plan(kills=100)


@dataclass
class Timeline:
    """What the replica did, by the machine's monotonic clock."""

    pushes: list[list[tuple[float, float]]] = field(default_factory=list)  # of each group: from, to
    steps: list[float] = field(default_factory=list)  # when each batch was computed


@dataclass(frozen=True)
class Kill:
    """One killed primary."""

    push_s: float
    computing: float  # steps per second after the kill, times those before it
    longest_step_s: float  # after it


class Replica:
    """A replica's process as a job for a crew: a thread computes, one for each group pushes.

    As in training, pushing is beside computing, and computing waits for nothing.
    """

    def __init__(self, rank: int, size: int, access: Access) -> None:
        self._client = access.client(retry_s=PATIENCE_S, purpose="failover")
        self._client.start()
        self._values = np.full(access.shards.floats, 1e-3, np.float32)

    def live(self, seconds: float) -> Timeline:
        """Compute and push for so long, and until one more push of every group has ended."""
        found = Timeline([[] for _ in self._client.servers])
        ends = time.monotonic() + seconds
        over = threading.Event()
        computing = threading.Thread(target=self._compute, args=(found.steps, over))
        pushing = [
            threading.Thread(target=self._push, args=(group, pushes, ends))
            for group, pushes in zip(self._client.servers, found.pushes, strict=True)
        ]
        for thread in (computing, *pushing):
            thread.start()
        for thread in pushing:
            thread.join()
        over.set()
        computing.join()
        return found

    def _push(self, group: Any, pushes: list[tuple[float, float]], ends: float) -> None:
        began = 0.0
        while began < ends:
            began = time.monotonic()
            group.push(self._values, rate=1e-3, steps=1)
            pushes.append((began, time.monotonic()))
            time.sleep(0.002)  # a replica pushes every few steps, not all the time

    def _compute(self, steps: list[float], over: threading.Event) -> None:
        weights = np.ones((784, 400), np.float32)
        images = np.ones((BATCH, 784), np.float32)
        while not over.is_set():
            np.matmul(images, weights)
            steps.append(time.monotonic())


def outcome(found: Timeline, killed_s: float) -> Kill:
    """Until every group had a push acknowledged that began after the kill."""
    push_s = max(
        min(ended for began, ended in pushes if began > killed_s) for pushes in found.pushes
    )
    steps = np.array(found.steps)
    before = np.count_nonzero(steps < killed_s) / (killed_s - steps[0])
    after = (steps[1:] >= killed_s) & (steps[:-1] < killed_s + LOOKED_AT_S)
    speed = np.count_nonzero(after) / LOOKED_AT_S / before
    return Kill(push_s - killed_s, speed, float(max(np.diff(steps)[after])))


def busiest(fleet: Fleet) -> int:
    """The server that is the primary of most buckets."""
    placement = fleet.placement()
    assert placement is not None
    primaries = Counter(place.primary for place in placement.buckets.values())
    server = primaries.most_common(1)[0][0]
    assert server is not None
    return server


def kill_once(fleet: Fleet, crew: Crew, told: bool) -> Kill:
    crew.tell("live", PEACE_S + AFTER_S)
    time.sleep(PEACE_S)
    server = busiest(fleet)
    killed_s = time.monotonic()
    fleet.kill(server)
    if told:
        fleet.tell_dead(server)
    found: Timeline = crew.answers(expected_s=PATIENCE_S)[0]
    fleet.launch(server)
    wait_until_whole(fleet)
    return outcome(found, killed_s)


def wait_until_whole(fleet: Fleet) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not fleet.is_whole():
        time.sleep(0.02)
        if time.monotonic() > deadline:
            raise RuntimeError(f"Copies lack after {PATIENCE_S:.0f} s: {fleet.placement()}")


def measure(plan: Plan) -> dict[str, list[Kill]]:
    kills: dict[str, list[Kill]] = {ALONE: [], TOLD: []}
    fleet = Fleet(PARAMETERS, servers=SERVERS, copies=COPIES, chunk_bytes=CHUNK_BYTES)
    with fleet, Crew("replica", Replica, 1, fleet.access) as crew:
        crew.answers()
        wait_until_whole(fleet)
        for number in range(plan.kills):
            name = (ALONE, TOLD)[number % 2]
            kills[name].append(kill_once(fleet, crew, told=name == TOLD))
            progress(f"kill {number + 1}, {name}: {kills[name][-1].push_s:.2f} s")
    return kills


def percentile(kills: list[Kill], share: float) -> float:
    return float(np.percentile([kill.push_s for kill in kills], share))


def figures(kills: list[Kill]) -> dict[str, Any]:
    return {
        "kills": len(kills),
        "push_s": {
            **Spread.of(kill.push_s for kill in kills).figures(),
            "p99": round(percentile(kills, 99), 3),
        },
        "computing_speed": Spread.of(kill.computing for kill in kills).figures(),
        "longest_step_ms": round(1e3 * max(kill.longest_step_s for kill in kills), 1),
    }


def print_kills(kills: dict[str, list[Kill]]) -> None:
    rows = []
    for name, found in kills.items():
        rows.append(
            [
                TITLES[name],
                str(len(found)),
                *(f"{percentile(found, share):.2f}" for share in (50, 99)),
                with_spread(Spread.of(kill.computing for kill in found), ".2f"),
            ]
        )
    print_table(
        "From a primary's SIGKILL to the next acknowledged push of all buckets",
        ["", "kills", "median, s", "p99, s", "computing: the second after, times before"],
        rows,
    )


def draw(kills: dict[str, list[Kill]]) -> None:
    with picture("failover", 1) as (panel,):
        for name, found in kills.items():
            seconds = sorted(kill.push_s for kill in found)
            share = np.arange(1, len(seconds) + 1) / len(seconds)
            panel.step(seconds, share, where="post", label=TITLES[name])
        panel.axvline(AIM_S, color="grey", linestyle=":")
        panel.set(xlabel="seconds to the next acknowledged push", ylabel="share of kills")
        panel.set(title="A primary is killed", xlim=0, ylim=(0, 1))
        panel.legend()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, help="how many; default: 100, or 6 with --quick")


def run(options: argparse.Namespace) -> dict[str, Any]:
    plan = QUICK if options.quick else FULL
    kills = measure(Plan(options.kills) if options.kills else plan)
    print_kills(kills)
    draw(kills)
    found = {name: figures(group) for name, group in kills.items()}
    return {
        "servers": SERVERS,
        "copies": COPIES,
        "figures": found,
        "aim_s": AIM_S,
        "met": all(percentile(group, 50) < AIM_S for group in kills.values()),
    }
