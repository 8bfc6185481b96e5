"""The connection from a primary to a copy: what is sent on it, and when it ends."""

from __future__ import annotations

from benchmarks.protocol_model.rules import Rules
from benchmarks.protocol_model.state import (
    ALIGN,
    ALIGNING,
    DOWN,
    IN_STEP,
    LEFT,
    NO_WIRE,
    SNAPSHOT,
    Frame,
    Server,
    Wire,
    World,
)

Wires = list[Wire]


def with_server(world: World, number: int, server: Server, wires: Wires | None = None) -> World:
    servers = (*world.servers[:number], server, *world.servers[number + 1 :])
    if wires is None:
        return world._replace(servers=servers)
    return world._replace(servers=servers, wires=tuple(wires))


def lose_connection(world: World, at: int, *, frames_arrive: bool) -> World:
    """The answers on their way are gone, and the frames too unless the copy reads them late.

    The primary remembers what was acknowledged.
    """
    wire = world.wires[at]
    kept = Wire(DOWN, 0, wire.stamp, acked=wire.acked) if wire.phase != LEFT else NO_WIRE
    if frames_arrive:
        kept = kept._replace(ghosts=wire.frames)
    wires = list(world.wires)
    wires[at] = kept
    return world._replace(wires=tuple(wires), breaks_left=world.breaks_left - 1)


def align(wire: Wire, server: Server, copy: int, rules: Rules) -> Wire:
    assert server.view is not None
    if rules.acks_after_align_only:
        wire = voided(wire)
    frame = Frame(ALIGN, server.lease, len(server.contents), server.last_lease)
    eager = copy in server.view.mirrors
    return wire._replace(phase=ALIGNING, eager=eager, acked=0, frames=(*wire.frames, frame))


def snapshot(wire: Wire, server: Server) -> Wire:
    frame = Frame(
        SNAPSHOT,
        server.lease,
        len(server.contents),
        last_lease=server.last_lease,
        contents=server.contents,
        log=server.log,
    )
    wire = voided(wire)
    return wire._replace(phase=IN_STEP, acked=0, frames=(*wire.frames, frame))


def voided(wire: Wire) -> Wire:
    """Whatever is answered to what was sent until now means nothing any more."""
    return wire._replace(
        frames=tuple(frame._replace(void=True) for frame in wire.frames),
        answers=tuple(answer._replace(void=True) for answer in wire.answers),
    )


def left(wire: Wire) -> Wire:
    """A copy that is not the sender's any more: what was sent may still arrive."""
    if not wire.frames and not wire.ghosts:
        return NO_WIRE
    return Wire(LEFT, wire.target, frames=wire.frames, ghosts=wire.ghosts)


def leave_all(wires: Wires, number: int, count: int) -> None:
    for at in range(number * count, number * count + count):
        wires[at] = left(wires[at])
