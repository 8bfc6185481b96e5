"""Servers, controllers and faults as a person reads of them: one line each."""

from __future__ import annotations

import io

from manyhands.telemetry.events import (
    ControllerReplaced,
    CopiesRestored,
    Event,
    FaultInjected,
    PrimaryMoved,
    ServerJoined,
    ServerLost,
    StoreRestored,
)
from manyhands.telemetry.plain_lines import PlainLines


def lines_of(*events: Event) -> list[str]:
    stream = io.StringIO()
    sink = PlainLines(stream)
    for event in events:
        sink.handle(event)
    return stream.getvalue().splitlines()


def fault(action: str, *targets: str, for_s: float = 0.0) -> FaultInjected:
    return FaultInjected(action=action, targets=targets, pids=(7, 8), push=812, for_s=for_s)


def test_servers_that_come_and_go() -> None:
    lost = ServerLost(server=1, pid=7, reason="killed by SIGKILL", restarts=True)
    assert lines_of(
        lost,
        ServerLost(server=1, pid=7, reason="died 5 times within 30 s", restarts=False),
        PrimaryMoved(server=1, buckets=12, by=(0, 2)),
        PrimaryMoved(server=0, buckets=1, by=(2,)),
        ServerJoined(server=1, pid=9),
        CopiesRestored(copies=3, seconds=1.44),
    ) == [
        "warning: server 1 (process 7) is lost: killed by SIGKILL; it is started again",
        "warning: server 1 (process 7) is lost: died 5 times within 30 s; nobody takes its place",
        "12 buckets of server 1 are served by servers 0 and 2 now",
        "1 bucket of server 0 is served by server 2 now",
        "server 1 (process 9) joined",
        "every bucket has its 3 copies again, after 1.4 s",
    ]


def test_what_may_be_lost_is_said_loudly() -> None:
    (line,) = lines_of(StoreRestored(buckets=3, servers=(0, 1, 2), write_back_s=5.0))
    assert line == (
        "warning: every copy of 3 buckets was lost: servers 0, 1 and 2 went on from what is on "
        "the disk; what was learned in the last 5 s before may be lost"
    )


def test_a_controller_is_replaced() -> None:
    replaced = ControllerReplaced(pid=7, reason="killed by SIGKILL", replaced_by=8)
    assert lines_of(replaced) == [
        "warning: the controller (process 7) is lost: killed by SIGKILL; process 8 takes its place"
    ]


def test_faults_say_what_was_done_to_whom_and_when() -> None:
    assert lines_of(
        fault("kill", "server/1"),
        fault("pause", "replica/0", for_s=2.0),
        fault("pause ended", "replica/0"),
        fault("cut", "server/0", "server/2", for_s=1.5),
        fault("cut ended", "server/0", "server/2"),
        fault("missed", "server/9"),
    ) == [
        "chaos: killed server/1 (process 7) at push 812",
        "chaos: paused replica/0 (process 7) for 2 s at push 812",
        "chaos: let replica/0 (process 7) go on at push 812",
        "chaos: cut server/0 from server/2 for 1.5 s at push 812",
        "chaos: let server/0 and server/2 hear each other again at push 812",
        "chaos: found no server/9 to harm at push 812",
    ]
