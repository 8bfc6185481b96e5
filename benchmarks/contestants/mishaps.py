"""Random faults for a fleet: kills, pauses and cuts, never of a bucket's last copy.

Which fault comes next is drawn from a seed. What is allowed at a moment depends on the processes: a
server is killed only if every bucket that it holds has another copy in step, by the placement that
is committed, on a server that nothing has befallen of late. (One that was paused or cut off may be
taken out of the placement at any moment, and counts as lost.) The controller stands still while
that is looked up, because it alone could change it. All else overlaps: kills with recovery, pauses
with cuts.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.contestants.fleet import Fleet

PATIENCE_S = 60.0
INSISTENCE_S = 0.7  # a fault that is not allowed is waited for so long, then another is drawn
CONVALESCENCE_S = 1.5  # after a pause or a cut: a lease, and the time to be heard again
KINDS = {
    "kill a server": 12,
    "pause a server": 6,
    "cut two servers": 5,
    "cut from the controller": 3,
    "kill the controller": 3,
    "pause the controller": 2,
    "pause a client": 2,
}


@dataclass(order=True)
class Repair:
    """What is due later: a process starts again, a cut ends."""

    due_s: float
    number: int
    act: Callable[[], None] = field(compare=False)
    touches: frozenset[str] = field(compare=False)


class Mishaps:
    """Draws faults and repairs what they broke when it is due. Not thread-safe."""

    def __init__(self, fleet: Fleet, clients: Sequence[int], seed: int) -> None:
        self._fleet = fleet
        self._clients = clients  # their processes
        self._random = random.Random(seed)
        self._repairs: list[Repair] = []
        self._numbers = itertools.count()
        self._hurt_until_s: dict[int, float] = {}  # servers that were paused or cut off
        self.done: Counter[str] = Counter()
        self.refused = 0  # kills that would have taken a last copy
        self._kinds: dict[str, Callable[[], bool]] = {
            "kill a server": self._kill_server,
            "pause a server": self._pause_server,
            "cut two servers": self._cut_servers,
            "cut from the controller": self._cut_controller,
            "kill the controller": self._kill_controller,
            "pause the controller": self._pause_controller,
            "pause a client": self._pause_client,
        }

    def run(self, faults: int, gap_s: float, watch: Callable[[], None]) -> None:
        """So many faults with such a gap between them on average; `watch` is called meanwhile."""
        while self.done.total() < faults:
            self._wait(self._random.expovariate(1 / gap_s), watch)
            began = drawn_s = time.monotonic()
            kind = self._drawn()
            while not self._happens(kind):
                self._wait(0.02, watch)
                now = time.monotonic()
                if now - drawn_s > INSISTENCE_S:
                    kind, drawn_s = self._drawn(), now
                if now - began > PATIENCE_S:
                    raise RuntimeError(f"No fault was allowed for {PATIENCE_S:.0f} s.")

    def heal(self, watch: Callable[[], None]) -> None:
        """Repair everything; wait until all servers serve and every bucket has its copies again."""
        while self._repairs:
            self._repair(heapq.heappop(self._repairs))
        began = time.monotonic()
        while not (self._fleet.is_whole() and self._fleet.all_serve()):
            watch()
            time.sleep(0.02)
            if time.monotonic() - began > PATIENCE_S:
                raise RuntimeError(
                    f"Copies lack after {PATIENCE_S:.0f} s of peace: {self._fleet.placement()}"
                )

    def _wait(self, seconds: float, watch: Callable[[], None]) -> None:
        ends = time.monotonic() + seconds
        while True:
            watch()
            now = time.monotonic()
            while self._repairs and self._repairs[0].due_s <= now:
                self._repair(heapq.heappop(self._repairs))
            if now >= ends:
                return
            time.sleep(min(0.02, ends - now))

    def _drawn(self) -> str:
        return self._random.choices(list(KINDS), list(KINDS.values()))[0]

    def _happens(self, kind: str) -> bool:
        done = self._kinds[kind]()
        if done:
            self.done[kind] += 1
        return done

    def _later(self, seconds: float, act: Callable[[], None], *touches: str) -> None:
        due_s = time.monotonic() + seconds
        heapq.heappush(self._repairs, Repair(due_s, next(self._numbers), act, frozenset(touches)))

    def _repair(self, repair: Repair) -> None:
        repair.act()

    def _is_touched(self, *names: str) -> bool:
        return any(not repair.touches.isdisjoint(names) for repair in self._repairs)

    def _server(self) -> int | None:
        running = sorted(self._fleet.servers)
        return self._random.choice(running) if running else None

    def _kill_server(self) -> bool:
        server = self._server()
        if server is None or self._is_touched(f"process {server}"):
            return False
        told = self._random.random() < 0.5
        with_restart_s = self._random.uniform(0.0, 0.4)
        if not self._kill_if_safe(server):
            self.refused += 1
            return False
        if told:
            self._fleet.tell_dead(server)
        self._later(with_restart_s, lambda: self._fleet.launch(server), f"process {server}")
        return True

    def _kill_if_safe(self, server: int) -> bool:
        """While nobody can change the placement: kill a server if all it holds is elsewhere too."""
        controller = self._fleet.controller
        if controller is not None:
            os.kill(controller.pid, signal.SIGSTOP)
            _wait_until_stopped(controller.pid)
        try:
            placement = self._fleet.placement()
            if placement is None:
                return False
            now = time.monotonic()
            hurt = {s for s, until_s in self._hurt_until_s.items() if now < until_s}
            for bucket in placement.buckets:
                copies = self._fleet.living_copies(placement, bucket)
                if server in copies and not copies - hurt - {server}:
                    return False
            self._fleet.kill(server)
            return True
        finally:
            if controller is not None and not self._is_touched("controller"):
                os.kill(controller.pid, signal.SIGCONT)

    def _pause_server(self) -> bool:
        server = self._server()
        if server is None or self._is_touched(f"process {server}"):
            return False
        seconds = self._random.choice((0.05, 0.3, 1.5, 2.5))
        self._pause(self._fleet.servers[server].pid, seconds, f"process {server}")
        self._hurt(seconds, server)
        return True

    def _hurt(self, seconds: float, *servers: int) -> None:
        until_s = time.monotonic() + seconds + CONVALESCENCE_S
        for server in servers:
            self._hurt_until_s[server] = max(until_s, self._hurt_until_s.get(server, 0.0))

    def _pause(self, pid: int, seconds: float, name: str) -> None:
        os.kill(pid, signal.SIGSTOP)
        self._later(seconds, lambda: os.kill(pid, signal.SIGCONT), name)

    def _cut_servers(self) -> bool:
        one, other = sorted(self._random.sample(range(self._fleet.shards.servers), 2))
        return self._cut(one, other, f"cut {one} {other}")

    def _cut_controller(self) -> bool:
        server = self._server()
        return server is not None and self._cut(server, None, f"cut {server} from the controller")

    def _cut(self, one: int, other: int | None, name: str) -> bool:
        if self._is_touched(name):
            return False
        self._fleet.cut(one, other, True)
        seconds = self._random.choice((0.1, 0.6, 2.0))
        self._later(seconds, lambda: self._fleet.cut(one, other, False), name)
        self._hurt(seconds, one, *(() if other is None else (other,)))
        return True

    def _kill_controller(self) -> bool:
        if self._is_touched("controller"):
            return False
        self._fleet.kill_controller()
        self._later(self._random.uniform(0.0, 1.0), self._fleet.start_controller, "controller")
        return True

    def _pause_controller(self) -> bool:
        if self._is_touched("controller"):
            return False
        assert self._fleet.controller is not None
        self._pause(self._fleet.controller.pid, self._random.choice((0.1, 1.5)), "controller")
        return True

    def _pause_client(self) -> bool:
        number = self._random.randrange(len(self._clients))
        if self._is_touched(f"client {number}"):
            return False
        self._pause(self._clients[number], self._random.choice((0.1, 1.0)), f"client {number}")
        return True


def _wait_until_stopped(pid: int) -> None:
    """A signal is sent at once and obeyed a little later, thread by thread."""
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        with suppress(OSError):  # a thread that just ended
            tasks = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat")]
            if all(task.rpartition(")")[2].split()[0] in "TtZX" for task in tasks):
                return
        time.sleep(0.001)
