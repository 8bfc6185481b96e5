"""What is to go wrong in a run, and when: kills, pauses and cuts as plain data.

For tests, and for people who want to see it. Decides nothing about processes; `injection.py`
does what is written here, `random_faults.py` draws what chaos does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from manyhands.errors import ConfigError

_NAME = re.compile(r"(server|replica)/[0-9]+|controller")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One thing that goes wrong, at a push of the run or a time after training began.

    `cut` has two targets, the others one. A pause and a cut end after `for_s`.
    """

    action: Literal["kill", "pause", "cut"]
    targets: tuple[str, ...]
    for_s: float = 0.0
    at_push: int | None = None
    at_s: float | None = None

    def is_due(self, pushes: int, seconds: float) -> bool:
        """Whether its moment has come."""
        if self.at_push is not None:
            return pushes >= self.at_push
        return seconds >= (self.at_s or 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Chaos:
    """Something goes wrong every few seconds, drawn from this seed (None draws one)."""

    seed: int | None = None
    every_s: float = 4.0

    def __post_init__(self) -> None:
        _check_seconds("every_s", self.every_s)
        if self.seed is not None and (type(self.seed) is not int or self.seed < 0):
            raise ConfigError(f"FaultPlan: seed is {self.seed!r}; expected a whole number >= 0.")


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What is to go wrong in a run. Every method returns a plan that has one fault more.

    Targets are "server/1", "replica/0" and "controller". A fault strikes when the servers have
    applied `at_push` pushes (of whole gradients, from all replicas together), or `at_s` seconds
    after the first replica began to train; with neither, as soon as one trains.

        FaultPlan().kill("server/1", at_push=500).pause("replica/0", for_s=5, at_s=2)
    """

    faults: tuple[Fault, ...] = ()
    chaos: Chaos | None = None

    def kill(
        self, name: str, *, at_push: int | None = None, at_s: float | None = None
    ) -> FaultPlan:
        """Kill a process with SIGKILL."""
        return self._with("kill", (name,), 0.0, at_push, at_s)

    def pause(
        self, name: str, *, for_s: float, at_push: int | None = None, at_s: float | None = None
    ) -> FaultPlan:
        """Stop a process for a while: it is silent, holds its connections, and then goes on."""
        return self._with("pause", (name,), for_s, at_push, at_s)

    def cut(
        self,
        one: str,
        other: str,
        *,
        for_s: float,
        at_push: int | None = None,
        at_s: float | None = None,
    ) -> FaultPlan:
        """Let nothing through between two servers, or a server and the controller, for a while."""
        _check_names((one, other))
        if one == other or any(name.startswith("replica/") for name in (one, other)):
            raise ConfigError(
                f"FaultPlan: cut({one!r}, {other!r}) is between two servers, or a server and the "
                "controller: give 'server/0' and 'server/2'."
            )
        return self._with("cut", (one, other), for_s, at_push, at_s)

    def random(self, seed: int | None = None, every_s: float = 4.0) -> FaultPlan:
        """Let something go wrong about every `every_s` seconds until the run ends."""
        return replace(self, chaos=Chaos(seed=seed, every_s=every_s))

    def __bool__(self) -> bool:
        return bool(self.faults) or self.chaos is not None

    def check(self, *, servers: int, replicas: int) -> None:
        """Raise ConfigError for a target that a run of this size does not begin with."""
        known = {"server": servers, "replica": replicas}
        for name in {name for fault in self.faults for name in fault.targets}:
            kind, _, number = name.partition("/")
            if number and int(number) >= known[kind]:
                raise ConfigError(
                    f"FaultPlan: there is no {name!r} in a run of {servers} servers and "
                    f"{replicas} replicas, which are numbered from 0."
                )

    def in_words(self) -> list[str]:
        """The plan as a run's configuration shows it."""
        faults = [
            f"{fault.action} {' '.join(fault.targets)}{_when(fault)}" for fault in self.faults
        ]
        chaos = self.chaos
        seeded = "" if chaos is None or chaos.seed is None else f", seed {chaos.seed}"
        return faults if chaos is None else [*faults, f"chaos every {chaos.every_s:g} s{seeded}"]

    def _with(
        self,
        action: Literal["kill", "pause", "cut"],
        targets: tuple[str, ...],
        for_s: float,
        at_push: int | None,
        at_s: float | None,
    ) -> FaultPlan:
        _check_names(targets)
        if action != "kill":
            _check_seconds("for_s", for_s)
        _check_moment(at_push, at_s)
        fault = Fault(action=action, targets=targets, for_s=for_s, at_push=at_push, at_s=at_s)
        return replace(self, faults=(*self.faults, fault))


def _when(fault: Fault) -> str:
    length = f" for {fault.for_s:g} s" if fault.for_s else ""
    if fault.at_push is not None:
        return f"{length} at push {fault.at_push}"
    return f"{length} at {fault.at_s or 0.0:g} s"


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"FaultPlan: {name!r} is no process of a run; expected 'server/1', 'replica/0' or "
                "'controller'."
            )


def _check_moment(at_push: int | None, at_s: float | None) -> None:
    if at_push is not None and at_s is not None:
        raise ConfigError(
            f"FaultPlan: at_push={at_push!r} and at_s={at_s!r} are both given; give one of them."
        )
    if isinstance(at_push, bool) or isinstance(at_s, bool):
        raise ConfigError("FaultPlan: at_push and at_s are numbers, not True or False.")
    if at_push is not None and (not isinstance(at_push, int) or at_push < 0):
        raise ConfigError(f"FaultPlan: at_push is {at_push!r}; expected a whole number >= 0.")
    if at_s is not None and (not isinstance(at_s, (int, float)) or not 0 <= at_s < float("inf")):
        raise ConfigError(f"FaultPlan: at_s is {at_s!r}; expected seconds >= 0.")


def _check_seconds(name: str, value: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf"):
        raise ConfigError(f"FaultPlan: {name} is {value!r}; expected seconds > 0.")
