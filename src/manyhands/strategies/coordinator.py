"""The driver's side of replicas and servers: who is there, who trains on what, what they report.

A thread of its own answers the replicas, so that they go on while the driver validates or writes a
checkpoint. What is decided about leases is decided in `leases.py`; how a role is started is the
session's to say.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from manyhands.errors import WorkerError
from manyhands.launch.local import Role, close_all, error_of
from manyhands.launch.role_process import Failure, Ready
from manyhands.parameter_server.reports import ServerReport
from manyhands.strategies.cluster import Cluster
from manyhands.strategies.downpour_messages import (
    Ask,
    Diverged,
    Flush,
    Flushed,
    GivenBack,
    Grant,
    Leave,
    PieceDone,
    ReplicaReport,
)
from manyhands.strategies.leases import LeaseDesk
from manyhands.telemetry.events import Event, Note, ReplicaJoined, ReplicaLost

_DEATHS_ALLOWED = 3  # of one replica in a row, with no piece finished in between
_LOOK_EVERY_S = 0.2


@dataclass(slots=True)
class ReplicaPlace:
    """A replica as the driver knows it."""

    number: int
    role: Role
    started: float
    report: ReplicaReport | None = None
    samples: int = 0
    ready: bool = False
    leaving: bool = False
    flushed: bool = False
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def samples_per_s(self) -> float:
        seconds = time.monotonic() - self.started
        return self.samples / seconds if self.ready and seconds > 0 else 0.0


@dataclass(slots=True)
class EpochAccount:
    """What the replicas reported of an epoch."""

    samples: int = 0
    loss_sum: float = 0.0

    @property
    def loss(self) -> float:
        return self.loss_sum / self.samples if self.samples else math.nan


@dataclass(slots=True)
class Traffic:
    """What replicas that are gone had pushed and pulled."""

    pushed_bytes: int = 0
    pulled_bytes: int = 0
    waited_s: float = 0.0

    def add(self, report: ReplicaReport | None) -> None:
        if report is not None:
            self.pushed_bytes += report.pushed_bytes
            self.pulled_bytes += report.pulled_bytes
            self.waited_s += report.waited_s


@dataclass(slots=True)
class _State:
    """Everything that the thread and its callers share, under one lock."""

    replicas: dict[int, ReplicaPlace] = field(default_factory=dict)
    server_reports: dict[int, ServerReport] = field(default_factory=dict)
    epochs: dict[int, EpochAccount] = field(default_factory=dict)
    gone: Traffic = field(default_factory=Traffic)
    deaths: dict[int, int] = field(default_factory=dict)
    lost_servers: set[int] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    error: BaseException | None = None
    began: float | None = None  # when the first replica could train


class Coordinator(threading.Thread):
    """Answers replicas, hears servers, replaces who dies. Thread-safe.

    An error that ends the run is kept and raised by `check`.
    """

    def __init__(
        self,
        desk: LeaseDesk,
        cluster: Cluster,
    ) -> None:
        super().__init__(name="coordinator", daemon=True)
        self.changed = threading.Condition()
        self._desk = desk
        self._cluster = cluster
        self._state = _State()
        self._next_number = 0
        self._closing = False
        self._wake_read, self._wake_write = os.pipe()

    # --- for the session

    def add_replicas(self, count: int) -> None:
        """Start more replicas; they join when they are ready."""
        for _ in range(count):
            with self.changed:
                number, self._next_number = self._next_number, self._next_number + 1
            self._place(number)

    def remove_replicas(self, count: int) -> list[int]:
        """Let the newest replicas finish what they have and go; their numbers. One stays."""
        with self.changed:
            staying = [p.number for p in self._state.replicas.values() if not p.leaving]
            going = sorted(staying)[1:][-count:] if count else []
            for number in going:
                self._state.replicas[number].leaving = True
                self._send(number, Leave())
            return going

    def open(self, epoch: int) -> None:
        """Let replicas train on an epoch."""
        with self.changed:
            self._state.epochs.setdefault(epoch, EpochAccount())
            self._desk.open(epoch)
            self._grant()

    def is_over(self, epoch: int) -> bool:
        with self.changed:
            return self._desk.is_over(epoch)

    def account(self, epoch: int) -> EpochAccount:
        """What was reported of an epoch so far."""
        with self.changed:
            account = self._state.epochs.get(epoch, EpochAccount())
            return EpochAccount(account.samples, account.loss_sum)

    @property
    def samples(self) -> int:
        """Samples of all epochs that were trained on."""
        with self.changed:
            return sum(account.samples for account in self._state.epochs.values())

    def flush(self, timeout_s: float) -> None:
        """Wait until every replica has pushed what it trained, or the time is up."""
        with self.changed:
            for place in self._state.replicas.values():
                place.flushed = False
                self._send(place.number, Flush())
            self.changed.wait_for(
                lambda: (
                    self._state.error is not None
                    or all(place.flushed for place in self._state.replicas.values())
                ),
                timeout_s,
            )

    def check(self) -> None:
        """Raise the error that ends the run, if there is one."""
        with self.changed:
            if self._state.error is not None:
                raise self._state.error

    @property
    def has_failed(self) -> bool:
        return self._state.error is not None

    def fail(self, error: BaseException) -> None:
        """Keep an error that ends the run; the first one counts."""
        with self.changed:
            self._state.error = self._state.error or error
            self.changed.notify_all()

    @property
    def began(self) -> float:
        """When the first replica could train; now, while none can."""
        with self.changed:
            return self._state.began or time.monotonic()

    def take_events(self) -> list[Event]:
        """What happened since the last call, for the event stream."""
        with self.changed:
            events, self._state.events = self._state.events, []
            return events

    @property
    def replicas(self) -> list[ReplicaPlace]:
        with self.changed:
            return [self._state.replicas[number] for number in sorted(self._state.replicas)]

    @property
    def server_reports(self) -> list[ServerReport]:
        with self.changed:
            return [self._state.server_reports[n] for n in sorted(self._state.server_reports)]

    def traffic(self) -> Traffic:
        """What all replicas pushed and pulled, those that are gone included."""
        with self.changed:
            total = Traffic(
                self._state.gone.pushed_bytes,
                self._state.gone.pulled_bytes,
                self._state.gone.waited_s,
            )
            for place in self._state.replicas.values():
                total.add(place.report)
            return total

    def buffers(self) -> dict[str, torch.Tensor]:
        """The replicas' buffers as one set; empty while none has trained."""
        with self.changed:
            reported = [
                (place.samples, place.buffers)
                for place in self._state.replicas.values()
                if place.samples and place.buffers
            ]
        return merged_buffers(reported)

    def close(self) -> None:
        """Stop answering and end every role; may be called twice."""
        with self.changed:
            if self._closing:
                return
            self._closing = True
        self._wake()
        if self.is_alive():
            self.join()
        close_all([place.role for place in self._state.replicas.values()])
        os.close(self._wake_read)
        os.close(self._wake_write)

    # --- the thread

    def run(self) -> None:
        while not self._closing:
            try:
                self._look()
            except BaseException as error:  # the thread's main loop: the session raises it
                self.fail(error)
                time.sleep(_LOOK_EVERY_S)

    def _look(self) -> None:
        with self.changed:
            replicas = {p.role.channel: p for p in self._state.replicas.values()}
        servers = {
            role.channel: number
            for number, role in enumerate(self._cluster.servers)
            if number not in self._state.lost_servers
        }
        for ready in wait([*replicas, *servers, self._wake_read], _LOOK_EVERY_S):
            if ready == self._wake_read:
                os.read(self._wake_read, 4096)
                continue
            assert isinstance(ready, Connection)
            message = _take(ready)
            with self.changed:
                if ready in servers:
                    self._hear_server(servers[ready], message)
                else:
                    self._hear_replica(replicas[ready], message)
                self._grant()
                self.changed.notify_all()

    def _hear_server(self, number: int, message: Any) -> None:
        if isinstance(message, ServerReport):
            self._state.server_reports[number] = message
        elif isinstance(message, Failure):
            raise error_of(f"parameter server {number}", message)
        elif message is None:
            self._state.lost_servers.add(number)
            self._cluster.hang_up()
            role = self._cluster.servers[number]
            raise WorkerError(
                f"Parameter server {number} (process {role.pid}) {role.ending()}, and its part "
                "of the weights is lost: resume the run from its last checkpoint."
            )

    def _hear_replica(self, place: ReplicaPlace, message: Any) -> None:
        state = self._state
        if isinstance(message, Ready):
            place.ready, place.started = True, time.monotonic()
            state.began = state.began or place.started
            self._desk.join(place.number)
            state.events.append(ReplicaJoined(replica=place.number, pid=place.role.pid))
        elif isinstance(message, Ask):
            self._desk.ask(place.number)
        elif isinstance(message, PieceDone):
            self._count(place, message)
        elif isinstance(message, GivenBack):
            self._desk.give_back(place.number, message.lease)
        elif isinstance(message, ReplicaReport):
            place.report = message
            place.buffers = {
                name: torch.from_numpy(buffer) for name, buffer in (message.buffers or {}).items()
            }
        elif isinstance(message, Flushed):
            place.flushed = True
        elif isinstance(message, Diverged):
            raise DivergedReplica(message)
        elif isinstance(message, Failure):
            raise error_of(f"replica {place.number}", message)
        elif message is None:
            self._lose(place)

    def _count(self, place: ReplicaPlace, done: PieceDone) -> None:
        if not self._desk.finish(place.number, done.lease):
            return
        place.samples += done.samples
        self._state.deaths[place.number] = 0
        account = self._state.epochs[done.lease.epoch]
        account.samples += done.samples
        account.loss_sum += done.loss * done.samples

    def _lose(self, place: ReplicaPlace) -> None:
        state = self._state
        reason = place.role.ending()
        place.role.close()
        del state.replicas[place.number]
        state.gone.add(place.report)
        returned = self._desk.leave(place.number)
        if place.leaving:
            state.events.append(Note(message=f"replica {place.number} left as asked"))
            return
        deaths = state.deaths[place.number] = state.deaths.get(place.number, 0) + 1
        if deaths <= _DEATHS_ALLOWED:
            successor = self._place(place.number)
            state.events.append(self._lost(place, reason, returned, successor.role.pid))
            return
        state.events.append(self._lost(place, reason, returned, None))
        if not state.replicas:
            raise WorkerError(
                f"Replica {place.number} died {deaths} times without getting anything done (the "
                f"last one {reason}) and none is left: look for what kills it. Memory is the usual "
                "cause; try fewer replicas or workers."
            )

    def _lost(
        self, place: ReplicaPlace, reason: str, returned: int, successor: int | None
    ) -> ReplicaLost:
        return ReplicaLost(
            replica=place.number,
            pid=place.role.pid,
            reason=reason,
            returned=returned,
            replaced_by=successor,
        )

    def _place(self, number: int) -> ReplicaPlace:
        place = ReplicaPlace(number, self._cluster.start_replica(number), time.monotonic())
        with self.changed:
            self._state.replicas[number] = place
        self._wake()
        return place

    def _grant(self) -> None:
        for number, lease in self._desk.grants():
            self._send(number, Grant(lease))

    def _send(self, number: int, message: object) -> None:
        try:
            self._state.replicas[number].role.channel.send(message)
        except OSError:
            return  # it is gone: the thread will hear so

    def _wake(self) -> None:
        os.write(self._wake_write, b".")


class DivergedReplica(Exception):
    """A replica met a loss that is not finite; the session says which samples."""

    def __init__(self, message: Diverged) -> None:
        super().__init__(f"loss {message.loss}")
        self.message = message


def merged_buffers(
    reported: Sequence[tuple[int, dict[str, torch.Tensor]]],
) -> dict[str, torch.Tensor]:
    """Buffers of several replicas as one set, each with the samples it was trained on.

    Statistics (BatchNorm's) are averaged by samples, counters take the largest; what is neither,
    or has no common shape, is that of the replica that trained most.
    """
    if not reported:
        return {}
    total = sum(samples for samples, _ in reported)
    most = max(reported, key=lambda one: one[0])[1]
    merged = dict(most)
    for name, tensor in most.items():
        others = [(samples / total, buffers[name]) for samples, buffers in reported]
        if any(other.shape != tensor.shape for _, other in others) or tensor.dtype == torch.bool:
            continue
        if tensor.is_floating_point():
            merged[name] = sum((share * b for share, b in others), torch.zeros_like(tensor))
        elif not tensor.is_complex():
            merged[name] = torch.stack([other for _, other in others]).amax(0)
    return merged


def _take(channel: Connection) -> Any | None:
    try:
        return channel.recv()
    except (EOFError, OSError):
        return None
