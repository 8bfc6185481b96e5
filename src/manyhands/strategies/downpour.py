"""Downpour: replicas that train asynchronously against parameter servers.

DistBelief, section 4.1, with the protocols of Adam, sections 3.2.5 and 3.2.6. How a run goes:

    driver                               replicas                        parameter servers
    ------                               --------                        -----------------
 1  cuts the parameters into chunks,
    starts a controller and servers,
    sets the weights  ----------------------------------------------->   hold chunks, their state
                                                                         and each other's copies
 2  starts replicas                 ->   pull the weights
 3  opens an epoch: leases pieces   ->   train; local weights move
 4                                       push sums, factors or rows ->   queue, apply, acknowledge
 5                                       every fetch_every steps    <-   pull
 6  75% of the replicas are done:        are in the next epoch already
    the epoch is over; pulls a
    snapshot and validates it while
    the replicas go on
 7  a replica dies: its pieces return    the others go on                what it pushed counts
 8  a server dies: it is started again   follow its chunks to another    a copy serves on at once

No replica waits for another. What a replica computes on is stale by what others pushed since its
last pull; the servers measure that for every push.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from manyhands.controller.registry_address import etcd_endpoints
from manyhands.errors import ConfigError, ModelError
from manyhands.optim.rules import Outer, Rule
from manyhands.replica.pool import usable_cores
from manyhands.replica.shared_weights import refuse_what_cannot_be_shared, trainable
from manyhands.strategies.downpour_driver.session import DownpourSession
from manyhands.strategies.faults.plan import FaultPlan
from manyhands.strategies.strategy import (
    Session,
    Strategy,
    TrainingJob,
)

_SHORTEST_LEASE_S = 0.3  # three heartbeats: of fewer, one that is late costs a server


@dataclass(frozen=True, slots=True)
class Downpour(Strategy):
    """Replicas that train asynchronously against parameter servers.

    `replicas` copies of the model (two by default), each with `workers` lock-free workers (by
    default the cores shared out among the replicas), push to `servers` processes every `push_every`
    steps and fetch every `fetch_every`; a step is one batch of one worker.

    `push="gradients"`: the servers apply the optimizer to summed gradients. `push="weights"`: each
    replica applies it, and what travels is how far its weights moved; the servers add that up, or
    apply `outer` to it, for replicas that take many steps between pushes. By default gradients
    where some are sparse or all are much smaller (factors), or the optimizer is Adagrad, else
    weights: momentum on a server amplifies what is stale (docs/decisions/0008).

    Sparse gradients (`mh.sparse`, nn.Embedding with sparse=True) travel as rows, and a fetch brings
    the rows that somebody's push has changed (docs/decisions/0017). Of a net that the fast path of
    `mh.sparse` trains, a replica's workers are threads of one native call.

    `staleness` says what a push is worth that was computed on old weights: "ignore" it, "scale" its
    rate down by it, or "bound" it: a replica waits while another is more than `max_staleness`
    pushes behind. `warm_start` is the share of the first epoch that one replica trains alone.
    `compress` ("bfloat16", "int8", "topk" with the share `keep`) shrinks dense pushes; what it
    drops is sent later. `forms` overrules the form of update ("delta", "factors", "rows") by
    parameter name. `prefixes` are commands that replicas are started under, each in turn.

    Every push is on `copies` servers before it is acknowledged (by default on three, or as many as
    there are): any server may be lost, all but one of them at once, and is started again, as are
    replicas and the controller. A server counts as lost when it is not heard for `lease_s`. Every
    `write_back_s` what has changed is written to the run's directory (None: never), from which a
    run is resumed on any number of servers. `registry` is where the controller keeps who holds
    what: "embedded" in a file, or "etcd://host:port,host:port". Servers talk to each other at
    `replication_host`, to the controller at `admin_host`; both are `host` unless given. `faults`
    is what is to go wrong on purpose.
    """

    replicas: int = 2
    servers: int = 1
    workers: int | None = None
    push_every: int = 1
    fetch_every: int = 1
    push: Literal["gradients", "weights"] | None = None
    outer: Outer | None = None
    staleness: Literal["ignore", "scale", "bound"] = "ignore"
    max_staleness: int = 16
    warm_start: float = 0.0
    epoch_share: float = 0.75
    compress: Literal["bfloat16", "int8", "topk"] | None = None
    keep: float = 0.01
    forms: Mapping[str, str] | None = None
    transport: Literal["auto", "tcp"] = "auto"
    lanes: int | None = None
    host: str = "127.0.0.1"
    share_batch: bool = True
    refuse_nonfinite: bool = True
    prefixes: Sequence[Sequence[str]] = ()
    copies: int | None = None
    write_back_s: float | None = 5.0
    lease_s: float = 1.0
    registry: str = "embedded"
    replication_host: str | None = None
    admin_host: str | None = None
    faults: FaultPlan | None = None

    name: ClassVar[str] = "downpour"

    def __post_init__(self) -> None:
        for name in ("replicas", "servers", "push_every", "fetch_every", "max_staleness"):
            _check_count(name, getattr(self, name))
        for name in ("workers", "lanes", "copies"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        _check_choice("push", self.push, (None, "gradients", "weights"))
        _check_choice("staleness", self.staleness, ("ignore", "scale", "bound"))
        _check_choice("compress", self.compress, (None, "bfloat16", "int8", "topk"))
        _check_choice("transport", self.transport, ("auto", "tcp"))
        _check_share("warm_start", self.warm_start, may_be_zero=True)
        _check_share("epoch_share", self.epoch_share)
        _check_share("keep", self.keep)
        self._check_survival()
        if self.outer is not None and self.push == "gradients":
            raise ConfigError('Downpour: outer is a rule for moved weights; give push="weights".')

    def _check_survival(self) -> None:
        if self.copies is not None and self.copies > min(3, self.servers):
            raise ConfigError(
                f"Downpour: copies is {self.copies} and servers is {self.servers}; expected at "
                "most 3 copies, each on a server of its own."
            )
        if self.write_back_s is not None:
            _check_seconds("write_back_s", self.write_back_s)
        _check_seconds("lease_s", self.lease_s, least=_SHORTEST_LEASE_S)
        for name in ("host", "replication_host", "admin_host"):
            host = getattr(self, name)
            if not (host is None and name != "host") and not (isinstance(host, str) and host):
                raise ConfigError(f"Downpour: {name} is {host!r}; expected a name or an address.")
        _check_registry(self.registry)
        if self.faults is not None:
            if not isinstance(self.faults, FaultPlan):
                raise ConfigError(f"Downpour: faults is {self.faults!r}; expected a FaultPlan.")
            self.faults.check(servers=self.servers, replicas=self.replicas)

    @property
    def hosts(self) -> tuple[str, str, str]:
        """The addresses of updates, of replication and of administration."""
        return self.host, self.replication_host or self.host, self.admin_host or self.host

    @property
    def worker_count(self) -> int:
        return self.replicas * self.workers_per_replica

    @property
    def replica_count(self) -> int:
        return self.replicas

    @property
    def server_count(self) -> int:
        return self.servers

    @property
    def workers_per_replica(self) -> int:
        """Lock-free workers inside each replica."""
        return self.workers or max(1, usable_cores() // self.replicas)

    def check(self, model: nn.Module, rule: Rule) -> None:
        refuse_what_cannot_be_shared(model)
        known = trainable(model)
        for name in self.forms or {}:
            if name not in known:
                raise ConfigError(
                    f"Downpour: forms names '{name}', which is no trainable parameter of the "
                    f"model; the first ones are {', '.join(list(known)[:4])}."
                )
        if self.refuse_nonfinite:
            _check_finite(known)

    def start(self, job: TrainingJob) -> Session:
        return DownpourSession(job, self)

    def to_dict(self) -> dict[str, Any]:
        plain = {
            key: value
            for key, value in asdict(self).items()
            if value is not None and key not in ("outer", "prefixes", "faults")
        }
        parts: dict[str, Any] = {"workers": self.workers_per_replica}
        if self.outer is not None:
            parts["outer"] = self.outer.to_dict()
        if self.faults is not None:
            parts["faults"] = self.faults.in_words()
        return {"name": self.name, **plain, **parts}


def _check_finite(parameters: Mapping[str, nn.Parameter]) -> None:
    for name, parameter in parameters.items():
        if not torch.isfinite(parameter.detach()).all():
            raise ModelError(
                f"Parameter '{name}' holds numbers that are not finite before training begins, and "
                "parameter servers refuse them: see where they come from, or pass "
                "Downpour(refuse_nonfinite=False)."
            )


def _check_seconds(name: str, value: object, *, least: float = 0.0) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and 0 < value < float("inf") and value >= least:  # type: ignore[operator]
        return
    expected = f">= {least:g}" if least else "> 0"
    raise ConfigError(f"Downpour: {name} is {value!r}; expected seconds {expected}.")


def _check_registry(registry: object) -> None:
    if registry == "embedded":
        return
    if not isinstance(registry, str) or not registry.startswith(("etcd://", "etcds://")):
        raise ConfigError(
            f"Downpour: registry is {registry!r}; expected 'embedded' or "
            "'etcd://host:port,host:port'."
        )
    etcd_endpoints(registry)


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"Downpour: {name} is {value!r}; expected a whole number of at least 1.")


def _check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        listed = " or ".join(repr(choice) for choice in choices)
        raise ConfigError(f"Downpour: {name} is {value!r}; expected {listed}.")


def _check_share(name: str, value: float, *, may_be_zero: bool = False) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1 or (value == 0 and not may_be_zero):
        raise ConfigError(f"Downpour: {name} is {value!r}; expected a share of 1.")
