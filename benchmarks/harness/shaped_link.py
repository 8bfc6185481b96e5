"""Two network namespaces joined by a link of a given speed, for the time of a block.

    NAME_a, 10.213.n.1  <-- veth, shaped in both directions -->  NAME_b, 10.213.n.2

A process gets into one by a prefix of its command: `ip netns exec NAME_a`. Making them needs root.
They are removed when the block ends; a process that is killed before can't, so whatever an earlier
run has left is removed when the next begins.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

from benchmarks.harness.native_program import Unavailable

FAMILY = "manyhands"
BURST_KB = 64
QUEUE_MS = 50


@dataclass(frozen=True)
class Side:
    """One end: how to run a process there, and what it is called there."""

    namespace: str
    interface: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.namespace)


class ShapedLink:
    """The link. A context manager; Unavailable where it can't be made, with the reason."""

    def __init__(self, megabits_per_s: int) -> None:
        self._megabits = megabits_per_s
        number = os.getpid() % 250
        self.a, self.b = (
            Side(f"{FAMILY}_{os.getpid()}_{side}", f"mh{side}{os.getpid()}", f"10.213.{number}.{n}")
            for side, n in (("a", 1), ("b", 2))
        )

    def __enter__(self) -> ShapedLink:
        for tool in ("ip", "tc"):
            if shutil.which(tool) is None:
                raise Unavailable(f"{tool} was not found (package iproute2)")
        _remove_left_behind()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def _make(self) -> None:
        for side in (self.a, self.b):
            _run("ip", "netns", "add", side.namespace)
        a, b = self.a, self.b
        _run(
            *("ip", "link", "add", a.interface, "netns", a.namespace, "type", "veth"),
            *("peer", "name", b.interface, "netns", b.namespace),
        )
        for side in (a, b):
            inside = ("ip", "-n", side.namespace)
            _run(*inside, "addr", "add", f"{side.address}/30", "dev", side.interface)
            _run(*inside, "link", "set", "lo", "up")
            _run(*inside, "link", "set", side.interface, "up")
            _run(
                *("tc", "-n", side.namespace, "qdisc", "add", "dev", side.interface, "root"),
                *("tbf", "rate", f"{self._megabits}mbit", "burst", f"{BURST_KB}kb"),
                *("latency", f"{QUEUE_MS}ms"),
            )

    def _remove(self) -> None:
        for side in (self.a, self.b):
            _delete(side.namespace)

    def carried_bytes(self) -> int:
        """What has crossed the link so far, both directions together."""
        return sum(self._sent(side) for side in (self.a, self.b))

    @contextmanager
    def late_s(self) -> Iterator[list[float]]:
        """Lists, at the end of the block, how long the link was needed for what crossed in it."""
        before = [self._sent(side) for side in (self.a, self.b)]
        late: list[float] = []
        yield late
        after = [self._sent(side) for side in (self.a, self.b)]
        busiest = max(now - then for now, then in zip(after, before, strict=True))
        late.append(8 * busiest / (1e6 * self._megabits))

    def _sent(self, side: Side) -> int:
        counter = f"/sys/class/net/{side.interface}/statistics/tx_bytes"
        return int(_run(*side.prefix, "cat", counter))


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


def _delete(namespace: str) -> None:
    """With the namespace goes its end of the link, and with that the other end."""
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)


def _remove_left_behind() -> None:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    for namespace in (line.split()[0] for line in listed.splitlines() if line.strip()):
        family, _, rest = namespace.partition("_")
        owner = rest.partition("_")[0]
        if family == FAMILY and owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            _delete(namespace)
