"""The driver's side of replicas and servers: who is there, who trains on what, what they report.

A thread of its own answers the replicas, so that they go on while the driver validates or writes a
checkpoint. What is decided about leases is decided in `leases.py`; how a role is started is the
session's to say.
"""

from __future__ import annotations

import io
import math
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from manyhands.errors import ServerUnavailable, WorkerError
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
_SILENCE_S = 30.0
_LEAVE_WITHIN_S = 60.0
_AWAY_S = 5.0


@dataclass(slots=True)
class ReplicaPlace:
    """A replica as the driver knows it."""

    number: int
    role: Role
    started: float
    report: ReplicaReport | None = None
    samples: int = 0
    ready: bool = False
    leaving: float | None = None  # since when
    flushed: bool = False
    heard: float = field(default_factory=time.monotonic)
    failure: str = ""  # why it ended itself, or was ended
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
        self._looked = time.monotonic()
        self._wake_read, self._wake_write = socket.socketpair()

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
                self._state.replicas[number].leaving = time.monotonic()
                self._desk.retire(number)
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

    def flush(self, timeout_s: float) -> bool:
        """Wait until every replica has pushed and reported what it trained; False when the time
        was too short for one of them."""
        with self.changed:
            asked = list(self._state.replicas.values())
            for place in asked:
                place.flushed = False
                self._send(place.number, Flush())
            return self.changed.wait_for(
                lambda: self.has_failed or all(self._is_flushed(place) for place in asked),
                timeout_s,
            )

    def _is_flushed(self, place: ReplicaPlace) -> bool:
        """Whether nothing more is to be expected of it: a lost replica has nothing either."""
        return place.flushed or self._state.replicas.get(place.number) is not place

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
        """Stop answering and end every replica; may be called twice."""
        with self.changed:
            if not self._closing:
                self._wake()
            self._closing = True
        if self.is_alive():
            self.join()
        close_all([place.role for place in self._state.replicas.values()])
        self._wake_read.close()
        self._wake_write.close()

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
            self._end_who_is_stuck()
            replicas = {p.role.channel: p for p in self._state.replicas.values()}
        servers = {
            role.channel: number
            for number, role in enumerate(self._cluster.servers)
            if number not in self._state.lost_servers
        }
        for ready in wait([*replicas, *servers, self._wake_read], _LOOK_EVERY_S):
            if ready == self._wake_read:
                self._wake_read.recv(4096)
                continue
            assert isinstance(ready, Connection)
            message = _take(ready)
            with self.changed:
                if ready in servers:
                    self._hear_server(servers[ready], message)
                else:
                    replicas[ready].heard = time.monotonic()
                    self._hear_replica(replicas[ready], message)
                self._grant()
                self.changed.notify_all()

    def _end_who_is_stuck(self) -> None:
        """Kill replicas that say nothing, though they report twice a second, or don't leave."""
        now = time.monotonic()
        away, self._looked = now - self._looked > _AWAY_S, now
        for place in self._state.replicas.values():
            if away:  # it was us who were stopped, and heard nobody
                place.heard = now
            late = place.leaving is not None and now - place.leaving > _LEAVE_WITHIN_S
            if place.ready and (late or now - place.heard > _SILENCE_S) and not place.failure:
                place.failure = f"said nothing for {now - place.heard:.0f} s and was ended"
                place.role.process.kill()

    def _hear_server(self, number: int, message: Any) -> None:
        if isinstance(message, ServerReport):
            self._state.server_reports[number] = message
        elif isinstance(message, Failure):
            raise error_of(f"parameter server {number}", message)
        elif message is None:
            self._state.lost_servers.add(number)
            role = self._cluster.servers[number]
            error = WorkerError(
                f"Parameter server {number} (process {role.pid}) {role.ending()}, and its part "
                "of the weights is lost: resume the run from its last checkpoint."
            )
            self.fail(error)  # before the calls that wait for that server end with their own
            self._cluster.hang_up()

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
            if message.buffers is not None:
                place.buffers |= torch.load(io.BytesIO(message.buffers), weights_only=True)
        elif isinstance(message, Flushed):
            place.flushed = True
            if not message.complete:
                late = f"replica {place.number} could not push all it trained in time"
                state.events.append(Note(message=late, warning=True))
        elif isinstance(message, Diverged):
            raise DivergedReplica(message)
        elif isinstance(message, Failure):
            # A replica that can't reach a server is lost like one that died; the others go on.
            if not isinstance(message.known, ServerUnavailable):
                raise error_of(f"replica {place.number}", message)
            place.failure = str(message.known)
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
        reason = place.failure or reason
        place.role.close()
        del state.replicas[place.number]
        state.gone.add(place.report)
        returned = self._desk.leave(place.number)
        if place.leaving is not None:
            state.events.append(Note(message=f"replica {place.number} left as asked"))
        else:
            self._replace(place, reason, returned)
        if not state.replicas:
            raise WorkerError(
                f"No replica is left: replica {place.number} was the last one ({reason}). Look for "
                "what kills it. Memory is the usual cause; try fewer replicas or workers."
            )

    def _replace(self, place: ReplicaPlace, reason: str, returned: int) -> None:
        """Start a successor, unless a replica has died too often without getting anything done."""
        state = self._state
        deaths = state.deaths[place.number] = state.deaths.get(place.number, 0) + 1
        successor = self._place(place.number).role.pid if deaths <= _DEATHS_ALLOWED else None
        state.events.append(self._lost(place, reason, returned, successor))

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
            if not self._closing:
                self._state.replicas[number] = place
                self._wake()
                return place
        place.role.close()
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
        self._wake_write.send(b".")


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
