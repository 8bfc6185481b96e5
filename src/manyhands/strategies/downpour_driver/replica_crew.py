"""The replicas of a run as the driver knows them: who trains on what, who is lost, who follows.

What is decided about leases is decided in `leases.py`; how a replica is started is the cluster's to
say (Adam, section 3.2.5).
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from manyhands.errors import ServerUnavailable, WorkerError
from manyhands.launch.local import Role, close_all, error_of
from manyhands.launch.role_process import Failure, Ready
from manyhands.strategies.divergence import Diverged
from manyhands.strategies.downpour_driver.notices import Notices
from manyhands.strategies.downpour_driver.replica_accounts import (
    EpochAccount,
    ReplicaPlace,
    Traffic,
)
from manyhands.strategies.downpour_driver.replica_buffers import merged_buffers
from manyhands.strategies.downpour_replica.messages import (
    Ask,
    Flush,
    Flushed,
    GivenBack,
    Grant,
    Leave,
    PieceDone,
    ReplicaReport,
)
from manyhands.strategies.leases import LeaseDesk
from manyhands.telemetry.events import Note, ReplicaJoined, ReplicaLost

_DEATHS_ALLOWED = 3  # of one replica in a row, with no piece finished in between
_SILENCE_S = 30.0
_LEAVE_WITHIN_S = 60.0
_AWAY_S = 5.0


@dataclass(slots=True)
class _State:
    """Everything that the coordinator's thread and the session share, under one lock."""

    replicas: dict[int, ReplicaPlace] = field(default_factory=dict)
    epochs: dict[int, EpochAccount] = field(default_factory=dict)
    gone: Traffic = field(default_factory=Traffic)
    deaths: dict[int, int] = field(default_factory=dict)
    excused: set[int] = field(default_factory=set)  # whose next death does not count
    began: float | None = None  # when the first replica could train
    next_number: int = 0
    closing: bool = False


class ReplicaCrew:
    """Answers replicas and replaces who dies. Thread-safe.

    `start_replica` starts the process of one replica. What a replica did wrong is raised by `hear`.
    """

    def __init__(
        self, desk: LeaseDesk, start_replica: Callable[[int], Role], notices: Notices
    ) -> None:
        self._desk = desk
        self._start_replica = start_replica
        self._notices = notices
        self._changed = notices.changed
        self._state = _State()
        self._looked = time.monotonic()

    # --- for the session

    def add(self, count: int) -> None:
        """Start more replicas; they join when they are ready."""
        for _ in range(count):
            with self._changed:
                number = self._state.next_number
                self._state.next_number += 1
            self._place(number)

    def remove(self, count: int) -> list[int]:
        """Let the newest replicas finish what they have and go; their numbers. One stays."""
        with self._changed:
            staying = [p.number for p in self._state.replicas.values() if not p.leaving]
            going = sorted(staying)[1:][-count:] if count else []
            for number in going:
                self._state.replicas[number].leaving = time.monotonic()
                self._desk.retire(number)
                self._send(number, Leave())
            return going

    def open(self, epoch: int) -> None:
        """Let replicas train on an epoch."""
        with self._changed:
            self._state.epochs.setdefault(epoch, EpochAccount())
            self._desk.open(epoch)
            self._grant()

    def is_over(self, epoch: int) -> bool:
        with self._changed:
            return self._desk.is_over(epoch)

    def account(self, epoch: int) -> EpochAccount:
        """What was reported of an epoch so far."""
        with self._changed:
            return replace(self._state.epochs.get(epoch, EpochAccount()))

    @property
    def samples(self) -> int:
        """Samples of all epochs that were trained on."""
        with self._changed:
            return sum(account.samples for account in self._state.epochs.values())

    def ask_to_flush(self) -> Callable[[], bool]:
        """Ask every replica to push and report what it trained; what is returned says whether all
        have."""
        with self._changed:
            asked = list(self._state.replicas.values())
            for place in asked:
                place.flushed = False
                self._send(place.number, Flush())
        return lambda: all(self._is_flushed(place) for place in asked)

    def _is_flushed(self, place: ReplicaPlace) -> bool:
        """Whether nothing more is to be expected of it: a lost replica has nothing either."""
        return place.flushed or self._state.replicas.get(place.number) is not place

    @property
    def began(self) -> float | None:
        """When the first replica could train; None while none can."""
        with self._changed:
            return self._state.began

    @property
    def places(self) -> list[ReplicaPlace]:
        with self._changed:
            return [self._state.replicas[number] for number in sorted(self._state.replicas)]

    def traffic(self) -> Traffic:
        """What all replicas pushed and pulled, those that are gone included."""
        with self._changed:
            gone = self._state.gone
            total = Traffic(gone.pushed_bytes, gone.pulled_bytes, gone.waited_s)
            for place in self._state.replicas.values():
                total.add(place.report)
            return total

    def buffers(self, statistics: Container[str]) -> dict[str, torch.Tensor]:
        """The replicas' buffers as one set; empty while none has trained. Averages `statistics`."""
        with self._changed:
            reported = [
                (place.samples, place.buffers)
                for place in self._state.replicas.values()
                if place.samples and place.buffers
            ]
        return merged_buffers(reported, statistics)

    def expect_death(self, number: int) -> None:
        """The next death of this replica is nobody's fault, and does not count."""
        with self._changed:
            self._state.excused.add(number)

    def close(self) -> None:
        """End every replica; may be called twice. The coordinator has been closed before."""
        with self._changed:
            self._state.closing = True
        close_all([place.role for place in self._state.replicas.values()])

    # --- for the coordinator

    def channels(self) -> Mapping[Connection, Callable[[Any], None]]:
        return {
            place.role.channel: partial(self._hear, place)
            for place in self._state.replicas.values()
        }

    def look(self) -> None:
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

    def _hear(self, place: ReplicaPlace, message: Any) -> None:
        place.heard = time.monotonic()
        if isinstance(message, Ready):
            self._welcome(place)
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
            self._note_flushed(place, message)
        elif isinstance(message, Diverged):
            raise DivergedReplica(message)
        elif isinstance(message, Failure):
            # A replica that can't reach a server is lost like one that died; the others go on.
            if not isinstance(message.known, ServerUnavailable):
                raise error_of(f"replica {place.number}", message)
            place.failure = str(message.known)
        elif message is None:
            self._lose(place)
        self._grant()

    def _welcome(self, place: ReplicaPlace) -> None:
        place.ready, place.started = True, time.monotonic()
        self._state.began = self._state.began or place.started
        self._desk.join(place.number)
        self._notices.tell(ReplicaJoined(replica=place.number, pid=place.role.pid))

    def _note_flushed(self, place: ReplicaPlace, message: Flushed) -> None:
        place.flushed = True
        if not message.complete:
            late = f"replica {place.number} could not push all it trained in time"
            self._notices.tell(Note(message=late, warning=True))

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
            self._notices.tell(Note(message=f"replica {place.number} left as asked"))
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
        deaths = state.deaths.get(place.number, 0) + (place.number not in state.excused)
        state.deaths[place.number] = deaths
        state.excused.discard(place.number)
        successor = self._place(place.number).role.pid if deaths <= _DEATHS_ALLOWED else None
        self._notices.tell(
            ReplicaLost(
                replica=place.number,
                pid=place.role.pid,
                reason=reason,
                returned=returned,
                replaced_by=successor,
            )
        )

    def _place(self, number: int) -> ReplicaPlace:
        place = ReplicaPlace(number, self._start_replica(number), time.monotonic())
        with self._changed:
            if not self._state.closing:
                self._state.replicas[number] = place
                return place
        place.role.close()
        return place

    def _grant(self) -> None:
        for number, lease in self._desk.grants():
            account = self._state.epochs[lease.epoch]
            account.began = account.began or time.monotonic()
            self._send(number, Grant(lease))

    def _send(self, number: int, message: object) -> None:
        try:
            self._state.replicas[number].role.channel.send(message)
        except OSError:
            return  # it is gone: the thread will hear so


class DivergedReplica(Exception):
    """A replica met a loss that is not finite; the session says which samples."""

    def __init__(self, message: Diverged) -> None:
        super().__init__(f"loss {message.loss}")
        self.message = message
