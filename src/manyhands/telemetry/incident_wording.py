"""Who came, who was lost and who took over, in one line each, on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from manyhands.telemetry.events import (
    ControllerReplaced,
    CopiesRestored,
    Event,
    FaultInjected,
    PrimaryMoved,
    ReplicaJoined,
    ReplicaLost,
    ServerJoined,
    ServerLost,
    StoreRestored,
)
from manyhands.telemetry.wording import counted


class Line(NamedTuple):
    """What a person is told, and whether to be warned by it."""

    text: str
    warning: bool


def line(event: Event) -> Line | None:
    """The line of an event that is an incident; None for any other."""
    known = _LINES.get(type(event))
    return None if known is None else Line(known[0](event), known[1])


def _replica_joined(event: ReplicaJoined) -> str:
    return f"replica {event.replica} (process {event.pid}) joined"


def _replica_lost(event: ReplicaLost) -> str:
    back = f"; {counted(event.returned, 'piece')} of its work given back" if event.returned else ""
    return (
        f"replica {event.replica} (process {event.pid}) is lost: {event.reason}{back}; "
        f"{_successor(event.replaced_by)}"
    )


def _server_joined(event: ServerJoined) -> str:
    return f"server {event.server} (process {event.pid}) joined"


def _server_lost(event: ServerLost) -> str:
    after = "it is started again" if event.restarts else "nobody takes its place"
    return f"server {event.server} (process {event.pid}) is lost: {event.reason}; {after}"


def _primary_moved(event: PrimaryMoved) -> str:
    verb = "is" if event.buckets == 1 else "are"
    return (
        f"{counted(event.buckets, 'bucket')} of server {event.server} {verb} served by "
        f"{_servers(event.by)} now"
    )


def _copies_restored(event: CopiesRestored) -> str:
    copies = "its copy" if event.copies == 1 else f"its {event.copies} copies"
    return f"every bucket has {copies} again, after {event.seconds:.1f} s"


def _store_restored(event: StoreRestored) -> str:
    return (
        f"every copy of {counted(event.buckets, 'bucket')} was lost: {_servers(event.servers)} "
        f"went on from what is on the disk; what was learned in the last {event.write_back_s:g} s "
        "before may be lost"
    )


def _controller_replaced(event: ControllerReplaced) -> str:
    return (
        f"the controller (process {event.pid}) is lost: {event.reason}; "
        f"{_successor(event.replaced_by)}"
    )


def _fault_injected(event: FaultInjected) -> str:
    first = event.targets[0]
    process = f"{first} (process {event.pids[0]})" if event.pids else first
    sentences = {
        "kill": f"killed {process}",
        "pause": f"paused {process} for {event.for_s:g} s",
        "pause ended": f"let {process} go on",
        "cut": f"cut {' from '.join(event.targets)} for {event.for_s:g} s",
        "cut ended": f"let {' and '.join(event.targets)} hear each other again",
        "missed": f"found no {first} to harm",
    }
    return f"chaos: {sentences[event.action]} at push {event.push}"


def _successor(pid: int | None) -> str:
    return "nobody takes its place" if pid is None else f"process {pid} takes its place"


def _servers(numbers: Sequence[int]) -> str:
    """server 2, servers 0 and 2, servers 0, 1 and 2."""
    *most, last = (str(number) for number in numbers)
    return f"servers {', '.join(most)} and {last}" if most else f"server {last}"


_LINES: dict[type[Event], tuple[Callable[[Any], str], bool]] = {
    ReplicaJoined: (_replica_joined, False),
    ReplicaLost: (_replica_lost, True),
    ServerJoined: (_server_joined, False),
    ServerLost: (_server_lost, True),
    PrimaryMoved: (_primary_moved, False),
    CopiesRestored: (_copies_restored, False),
    StoreRestored: (_store_restored, True),
    ControllerReplaced: (_controller_replaced, True),
    FaultInjected: (_fault_injected, False),  # it was asked for
}
