"""Faults at random while clients push: are the weights exactly the sum of all pushes, each once.

Four servers with three copies of every bucket, a controller and three clients, all of them
processes. Servers and controllers are killed with SIGKILL, stopped with SIGSTOP and cut off from
each other; the dead are started again, as a driver does. The clients push whole numbers in all
forms and count what was acknowledged. Then every server is killed once more, one after another, so
that what the mirrors hold is looked at too. The seed is printed: `--seed` draws the same faults
again, though processes never meet them at the same moments twice.
"""

from __future__ import annotations

import argparse
import secrets
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.contestants.fleet import Fleet
from benchmarks.contestants.mishaps import Mishaps
from benchmarks.contestants.whole_numbers import Counts, Pushed, WholeNumbers, expected
from benchmarks.harness.crew import Crew
from benchmarks.harness.report import print_table
from benchmarks.harness.rounds import Spread, progress
from manyhands.parameter_server.shard_map import Form, ParameterSpec

PARAMETERS = (
    ParameterSpec("large", (120, 500)),
    ParameterSpec("small", (3, 7)),
    ParameterSpec("bias", (401,)),
    ParameterSpec("linear", (60, 40), Form.FACTORS),
    ParameterSpec("embedding", (200, 16), Form.ROWS),
)
CHUNK_BYTES = 1 << 15
SLICE_S = 0.5


@dataclass(frozen=True)
class Plan:
    """What a run goes through."""

    faults: int
    gap_s: float = 0.3
    servers: int = 4
    copies: int = 3
    clients: int = 3
    deaths_at_the_end: bool = True


QUICK = Plan(faults=40)
FULL = Plan(faults=1000)


@dataclass(frozen=True)
class Outcome:
    """What was found at the end."""

    seed: int
    faults: dict[str, int]
    pushes: int
    wrong: int  # floats that differ from the sum of all pushes
    waits_s: list[float]
    leases: int  # how often a bucket changed its primary
    seconds: float

    @property
    def exact(self) -> bool:
        return self.wrong == 0


class Pushing:
    """Drives the clients in a thread: slice after slice until told to stop."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.last: list[Pushed] = []
        self.waits_s: list[float] = []
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def watch(self) -> None:
        """Raise what went wrong with a client, if anything did."""
        if self.error is not None:
            raise self.error

    def stop(self) -> list[Counts]:
        """Let every push end; returns what each client had acknowledged."""
        self._stop.set()
        self._thread.join()
        self.watch()
        return [pushed.counts for pushed in self.last]

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._crew.tell("push_for", SLICE_S)
                self.last = self._crew.answers(expected_s=SLICE_S)
                self.waits_s += [wait for pushed in self.last for wait in pushed.waits_s]
        except BaseException as error:  # told by `watch`: nobody else looks at this thread
            self.error = error


def endure(plan: Plan, seed: int) -> Outcome:
    """Push through so many faults and compare the weights with what they must be."""
    began = time.monotonic()
    fleet = Fleet(
        PARAMETERS, servers=plan.servers, copies=plan.copies, lanes=2, chunk_bytes=CHUNK_BYTES
    )
    with fleet, Crew("client", WholeNumbers, plan.clients, fleet.access) as crew:
        crew.answers()
        pushing = Pushing(crew)
        mishaps = Mishaps(fleet, crew.pids, seed)

        def watch() -> None:
            pushing.watch()
            if fleet.lost_buckets:
                raise RuntimeError(f"A bucket has no copy left, with seed {seed}.")

        pushing.start()
        mishaps.heal(watch)
        for done in range(0, plan.faults, 100):
            mishaps.run(min(plan.faults, done + 100), plan.gap_s, watch)
            progress(f"{mishaps.done.total()} faults, {time.monotonic() - began:.0f} s ...")
        mishaps.heal(watch)
        counts = pushing.stop()
        wrong = differing(fleet, crew, counts)
        if plan.deaths_at_the_end:
            for server in range(plan.servers):
                fleet.kill(server)
                wrong = max(wrong, differing(fleet, crew, counts))
                fleet.launch(server)
                mishaps.heal(watch)
        placement = fleet.placement()
        assert placement is not None
        return Outcome(
            seed,
            dict(mishaps.done),
            sum(int(c.sum()) for c in counts),
            wrong,
            pushing.waits_s,
            sum(place.lease - 1 for place in placement.buckets.values()),
            time.monotonic() - began,
        )


def differing(fleet: Fleet, crew: Crew, counts: list[Counts]) -> int:
    """How many floats are not the sum of all pushes, as every client sees them."""
    right = expected(fleet.shards, counts)
    crew.tell("weights")
    return max(int(np.count_nonzero(found != right)) for found in crew.answers())


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--faults", type=int, help="how many; default: 1000, or 40 with --quick")
    parser.add_argument("--seed", type=int, help="draw the faults of an earlier run")
    parser.add_argument("--gap", type=float, help="seconds between faults, on average")
    parser.add_argument("--servers", type=int)
    parser.add_argument("--copies", type=int)


def run(options: argparse.Namespace) -> dict[str, Any]:
    plan = QUICK if options.quick else FULL
    asked = {
        "faults": options.faults,
        "gap_s": options.gap,
        "servers": options.servers,
        "copies": options.copies,
    }
    plan = replace(plan, **{name: value for name, value in asked.items() if value})
    seed = secrets.randbits(32) if options.seed is None else options.seed
    progress(f"Seed {seed}: {plan.faults} faults ...")
    found = endure(plan, seed)
    rows = [[kind, f"{count:,}"] for kind, count in sorted(found.faults.items())]
    print_table(f"Faults, seed {seed}", ["", "times"], rows)
    waits = Spread.of(found.waits_s)
    print(
        f"{found.pushes:,} pushes were acknowledged in {found.seconds:.0f} s, buckets changed "
        f"their primary {found.leases:,} times, and "
        f"{'the weights are exactly their sum' if found.exact else f'{found.wrong} floats differ'}."
    )
    return {
        "seed": seed,
        "faults": sum(found.faults.values()),
        "faults_by_kind": found.faults,
        "servers": plan.servers,
        "copies": plan.copies,
        "clients": plan.clients,
        "acknowledged_pushes": found.pushes,
        "changes_of_primary": found.leases,
        "longest_push_s": round(waits.high, 3),
        "median_push_ms": round(1e3 * waits.median, 3),
        "floats_that_differ": found.wrong,
        "met": found.exact,
    }
