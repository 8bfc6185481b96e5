"""A replica of Downpour: lock-free workers around one copy of the weights, in one process.

    main thread          worker threads                     exchange threads, one per server
    -----------          --------------                     --------------------------------
    grants  --------->   claim a lease, prefetch it
                         train: the local weights move      wait for push_every steps
                         at once, without locks
                         sums, factors, rows  --------->    push; every fetch_every steps, fetch
    PieceDone <-------   the next piece                     into the local weights
    reports every half second

The driver knows the replica by its channel alone; the parameter servers know it by the client id
in its frames (Adam, sections 3.2.1, 3.2.2 and 3.2.6; DistBelief, section 4.1).
"""

from __future__ import annotations

import io
import queue
import sys
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn

from manyhands.launch.role_process import Ready
from manyhands.optim.rules import Adam, Rule
from manyhands.parameter_server.client.dialling import OwnMemory
from manyhands.parameter_server.client.held_weights import HeldWeights
from manyhands.parameter_server.client.parameter_client import ParameterClient
from manyhands.parameter_server.client.parts import Integers
from manyhands.parameter_server.client.routes import ControllerRoutes
from manyhands.parameter_server.shard_map import ShardMap
from manyhands.replica import plan as native_plan
from manyhands.replica.flat_weights import FlatLayout, copies_for_threads
from manyhands.sparse.fast_path import FastPath
from manyhands.strategies.downpour_replica.exchange import (
    Exchange,
    GradientOutbox,
    Line,
    StepClock,
    Stretch,
    WeightOutbox,
)
from manyhands.strategies.downpour_replica.messages import (
    Ask,
    Flush,
    Flushed,
    Grant,
    Leave,
    ReplicaReport,
)
from manyhands.strategies.downpour_replica.worker import ReplicaWorker, WorkerTools
from manyhands.strategies.leases import Lease
from manyhands.strategies.strategy import TrainingJob
from manyhands.transport.arena import Arena
from manyhands.transport.endpoint import Endpoint

_REPORT_EVERY_S = 0.5
_FLUSH_WITHIN_S = 30.0
_PUSHES_QUEUED = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaSettings:
    """How a replica trains and talks; the same for all."""

    workers: int
    threads: int  # of a worker, on the fast path of sparse layers
    push_every: int
    fetch_every: int
    sends_weights: bool
    weight_rate: float
    compress: str | None
    keep: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaTask:
    """What a replica's process runs. Its data is a pointer into shared memory where it can be."""

    number: int
    job: TrainingJob
    shard_map: ShardMap
    controller: Endpoint
    settings: ReplicaSettings
    access: dict[str, Any]  # what lets a client in: see `ParameterClient`
    plan: native_plan.PlanDescription | None
    fast_path: FastPath | None
    channels_last: bool

    def run(self, channel: Connection) -> None:
        sys.setswitchinterval(0.001)  # exchange threads get their turn between two short kernels
        torch.manual_seed(self.job.worker_seed(self.number))
        replica = _Replica(self, channel)
        channel.send(Ready())  # before a worker can ask: who hasn't joined is not heard
        with replica:
            replica.run()


@dataclass(slots=True)
class _Lines:
    """Lines of floats, laid out as the servers have them, in memory that servers can read."""

    arena: Arena
    arrays: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, floats: int, names: list[str]) -> _Lines:
        lines = cls(Arena.with_room_for([torch.empty(floats)] * len(names)))
        lines.arrays = {name: lines.arena.place_zeros(floats) for name in names}
        return lines

    def __getitem__(self, name: str) -> Line:
        return self.arrays[name].numpy()


class _Replica:
    """The threads of one replica and what they share."""

    def __init__(self, task: ReplicaTask, channel: Connection) -> None:
        self._task = task
        self._job = task.job
        self._settings = task.settings
        self._channel = channel
        self._sending = threading.Lock()
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._grants: queue.SimpleQueue[Lease | None] = queue.SimpleQueue()
        self._clock = StepClock()
        self._leaving = False
        self._reported: dict[str, torch.Tensor] = {}
        self._listeners: list[dict[str, Any]] = []  # of each worker's model
        self._lines = _Lines.of(task.shard_map.floats, self._line_names())
        self._client = self._make_client()
        self._client.start()
        self._layout = FlatLayout(
            task.job.model,
            task.shard_map.starts,
            task.shard_map.floats,
            channels_last=task.channels_last,
        )
        self._held = HeldWeights(task.shard_map, self._lines["local"])
        self._fetch_first()
        self._outbox = self._make_outbox()
        self._workers = self._make_workers()
        self._exchanges = [
            Exchange(
                server,
                self._outbox,
                self._clock,
                push_every=self._settings.push_every,
                fetch_every=self._settings.fetch_every,
                fail=self.fail,
            )
            for server in self._client.servers
        ]

    def __enter__(self) -> _Replica:
        threading.Thread(target=self._read, name="grants", daemon=True).start()
        for thread in (*self._exchanges, *self._workers):
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for exchange in self._exchanges:
            exchange.close()
        self._client.interrupt()
        for exchange in self._exchanges:
            exchange.join()
        self._client.close()

    def run(self) -> None:
        """Serve the driver until it says to leave; raises what a thread raised."""
        next_report = time.monotonic() + _REPORT_EVERY_S
        while True:
            try:
                message = self._inbox.get(timeout=max(0.0, next_report - time.monotonic()))
            except queue.Empty:
                self._report()
                next_report = time.monotonic() + _REPORT_EVERY_S
                continue
            if isinstance(message, BaseException):
                raise message
            if isinstance(message, Flush):
                complete = self._flush()
                self._report()
                self.send(Flushed(complete))
            elif isinstance(message, Leave):
                return self._leave()

    # --- for the workers

    @property
    def leaving(self) -> bool:
        return self._leaving

    def next_lease(self) -> Lease | None:
        if self._leaving:
            return None
        self.send(Ask())
        return self._grants.get()

    def send(self, message: object) -> None:
        with self._sending:
            self._channel.send(message)

    def fail(self, error: BaseException) -> None:
        self._inbox.put(error)

    # --- set-up

    def _line_names(self) -> list[str]:
        if self._settings.sends_weights:
            names = ["local", "base", "staged", "pulled"]
        else:
            names = ["local", "outgoing", "staged"]
        return [*names, "sent"] if self._settings.compress else names

    def _make_client(self) -> ParameterClient:
        settings, access = self._settings, self._task.access
        purpose = f"replica {self._task.number}"
        routes = ControllerRoutes(
            self._task.controller,
            token=access["token"],
            credentials=access["credentials"],
            purpose=purpose,
        )
        return ParameterClient(
            self._task.shard_map,
            routes,
            own=OwnMemory.of(self._lines.arena),
            purpose=purpose,
            encoding=settings.compress or "float32",
            keep=settings.keep,
            **access,
        )

    def _fetch_first(self) -> None:
        self._client.fetch(self._held)
        if self._settings.sends_weights:
            self._lines["base"][:] = self._lines["local"]
        self._layout.attach(self._job.model, self._lines.arrays["local"])

    def _make_outbox(self) -> WeightOutbox | GradientOutbox:
        lines, settings = self._lines, self._settings
        sent = lines["sent"] if settings.compress else None
        if settings.sends_weights:
            return WeightOutbox(
                lines["local"],
                lines["base"],
                lines["staged"],
                lines["pulled"],
                sent,
                rate=settings.weight_rate,
            )
        return GradientOutbox(
            self._task.shard_map,
            self._held,
            lines["outgoing"],
            lines["staged"],
            sent,
            rate_of=lambda stretch: rate_of_push(self._job.rule, stretch),
            most_queued=_PUSHES_QUEUED,
            most_rows=_PUSHES_QUEUED * settings.push_every * settings.workers,
            rows_came=self._tell_layers,
        )

    def _tell_layers(self, name: str, rows: Integers) -> None:
        """Layers that keep an index of their rows hear which of them were fetched."""
        for layers in self._listeners:
            if name in layers:
                layers[name].rows_changed(torch.from_numpy(rows))

    def _make_workers(self) -> list[ReplicaWorker]:
        tools = WorkerTools(
            job=self._job,
            shard_map=self._task.shard_map,
            layout=self._layout,
            outbox=self._outbox,
            clock=self._clock,
            push_every=self._settings.push_every,
            plan=self._task.plan,
            fast_path=self._task.fast_path,
            threads=self._settings.threads,
            channels_last=self._task.channels_last,
        )
        models = copies_for_threads(self._job.model, self._settings.workers)
        self._listeners = [listening_layers(model) for model in models]
        return [ReplicaWorker(number, model, tools, self) for number, model in enumerate(models)]

    # --- the main thread

    def _read(self) -> None:
        try:
            while True:
                message = self._channel.recv()
                if isinstance(message, Grant):
                    self._grants.put(message.lease)
                else:
                    self._inbox.put(message)
        except (EOFError, OSError) as error:
            self._inbox.put(error)

    def _flush(self) -> bool:
        """Push everything that is done; whether that succeeded in time."""
        deadline = time.monotonic() + _FLUSH_WITHIN_S
        done = [e.flush(max(0.0, deadline - time.monotonic())) for e in self._exchanges]
        return all(done)

    def _leave(self) -> None:
        self._leaving = True
        for _ in self._workers:
            self._grants.put(None)
        for worker in self._workers:
            worker.join()
        self._flush()
        self._report()

    def _report(self) -> None:
        counters = self._client.counters
        self.send(
            ReplicaReport(
                pushed_bytes=counters.pushed_bytes,
                pulled_bytes=counters.pulled_bytes,
                waited_s=counters.waited_s,
                buffers=self._changed_buffers(),
            )
        )

    def _changed_buffers(self) -> bytes | None:
        """The buffers that are not as they were last reported, as `torch.save` writes them."""
        changed = {}
        for name, buffer in self._job.model.named_buffers():
            before = self._reported.get(name)
            if before is None or before.shape != buffer.shape or not torch.equal(before, buffer):
                changed[name] = buffer.detach().clone()
        if not changed:
            return None
        self._reported.update(changed)
        data = io.BytesIO()
        torch.save(changed, data)
        return data.getvalue()


def listening_layers(model: nn.Module) -> dict[str, Any]:
    """The modules that want to hear which rows of a parameter came, by the parameter's name."""
    return {
        f"{path}.{name}".lstrip("."): module
        for path, module in model.named_modules()
        if callable(getattr(module, "rows_changed", None))
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() > 1
    }


def rate_of_push(rule: Rule, stretch: Stretch) -> float:
    """The rate at which a server applies a sum of gradients.

    Adam moves by its rate however large the gradient is, so one sum has to move as far as its
    steps would have. For other rules the sum itself is larger.
    """
    return stretch.rate * stretch.steps if isinstance(rule, Adam) else stretch.rate
