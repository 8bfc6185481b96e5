"""A replica's process: what it says first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from manyhands.launch.role_process import Ready
from manyhands.strategies.downpour_replica import replica as downpour_replica
from manyhands.strategies.downpour_replica.messages import Ask
from manyhands.strategies.downpour_replica.replica import ReplicaTask


class Eager:
    """A replica whose workers ask the moment they start."""

    def __init__(self, task: ReplicaTask, channel: Any) -> None:
        self._channel = channel

    def __enter__(self) -> Eager:
        self._channel.send(Ask())
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self) -> None: ...


def test_a_replica_joins_before_its_workers_ask_for_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is asked for by someone who hasn't joined is not remembered: it would wait for ever.
    monkeypatch.setattr(downpour_replica, "_Replica", Eager)
    said: list[object] = []
    task: Any = SimpleNamespace(number=0, job=SimpleNamespace(worker_seed=lambda number: 0))

    ReplicaTask.run(task, SimpleNamespace(send=said.append))  # type: ignore[arg-type]

    assert [type(message) for message in said] == [Ready, Ask]
