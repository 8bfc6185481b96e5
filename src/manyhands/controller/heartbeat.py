"""What a server says ten times a second, checked: anybody in the run may say anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from manyhands.controller.copies import InStep
from manyhands.errors import ProtocolError
from manyhands.parameter_server.placement import Member


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Who is there, which placement it knows, and what it has to report as a primary."""

    member: Member
    known: int
    in_step: tuple[InStep, ...]
    suspects: frozenset[int]
    progress: Mapping[int, int]  # bucket -> sum of its chunks' versions

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Heartbeat:
        """The heartbeat in a call's arguments; ProtocolError when anything is not right."""
        try:
            member = Member.from_json(
                {name: arguments[name] for name in _MEMBER} | {"draining": False}
            )
            return cls(
                member,
                _number(arguments["known"]),
                tuple(_in_step(member.server, claim) for claim in arguments["in_step"]),
                frozenset(_number(server) for server in arguments["suspects"]),
                {int(bucket): _number(sum_) for bucket, sum_ in arguments["progress"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"A heartbeat can't be read: {error!r}.") from error


_MEMBER = ("server", "incarnation", "endpoint", "replication", "host")


def _in_step(primary: int, claim: Any) -> InStep:
    bucket, server, since, lease = (_number(value) for value in claim)
    return InStep(primary, bucket, server, since, lease)


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no number")
    return value
