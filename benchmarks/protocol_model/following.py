"""What a copy does with what its primary sends: obey the lease, align, restore, apply."""

from __future__ import annotations

from benchmarks.protocol_model.rules import Rules
from benchmarks.protocol_model.state import (
    ACK,
    ALIGN,
    DIFFERENT,
    LEFT,
    OUT_OF_STEP,
    SAME,
    SNAPSHOT,
    STALE,
    UPDATE,
    Answer,
    Frame,
    Server,
    World,
)
from benchmarks.protocol_model.wires import leave_all, left, with_server


def take_frame(world: World, at: int, rules: Rules) -> World:
    """A copy handles the next frame of a connection and answers it."""
    count = len(world.servers)
    copy = at % count
    wire = world.wires[at]
    server, answer = _handled(world.servers[copy], wire.frames[0], rules)
    wires = list(world.wires)
    if world.servers[copy].view is not None and server.view is None:
        leave_all(wires, copy, count)
    frames = wire.frames[1:]
    if wire.phase == LEFT:
        wires[at] = left(wire._replace(frames=frames))._replace(stamp=wire.stamp)
    else:
        wires[at] = wire._replace(frames=frames, answers=(*wire.answers, answer))
    return with_server(world, copy, server, wires)


def take_ghost(world: World, at: int, rules: Rules) -> World:
    """A copy handles a frame of an older connection. Nobody hears the answer."""
    copy = at % len(world.servers)
    wire = world.wires[at]
    server, _ = _handled(world.servers[copy], wire.ghosts[0], rules)
    wires = list(world.wires)
    wires[at] = wire._replace(ghosts=wire.ghosts[1:])
    if world.servers[copy].view is not None and server.view is None:
        leave_all(wires, copy, len(world.servers))
    return with_server(world, copy, server, wires)


def _handled(server: Server, frame: Frame, rules: Rules) -> tuple[Server, Answer]:
    server, kind = _obeyed(server, frame, rules)
    version = frame.version + (frame.kind == UPDATE)
    return server, Answer(kind, frame.lease, version, frame.void)


def _obeyed(server: Server, frame: Frame, rules: Rules) -> tuple[Server, str]:
    if rules.fence and frame.lease < server.lease:
        return server, STALE
    if frame.lease > server.lease:
        server = server._replace(lease=frame.lease, view=None, reported=())
    if frame.kind == ALIGN:
        told, own = (frame.last_lease, frame.version), server.position
        same = told == own if rules.lease_in_position else told[1] == own[1]
        return server, SAME if same else DIFFERENT
    if frame.kind == SNAPSHOT:
        return _restored(server, frame, rules)
    if rules.lease_in_update and frame.last_lease != server.last_lease:
        return server, OUT_OF_STEP
    if rules.update_at_position and frame.version != len(server.contents):
        return server, OUT_OF_STEP
    log = logged(server.log, *frame.log) if frame.log else server.log
    return applied(server, frame.update, frame.lease, log), ACK


def _restored(server: Server, frame: Frame, rules: Rules) -> tuple[Server, str]:
    late = server.last_lease == frame.lease and frame.version < len(server.contents)
    if late and rules.newer_contents_stay:
        return server, OUT_OF_STEP
    log = frame.log if rules.log_in_snapshot else tuple(0 for _ in frame.log)
    restored = server._replace(contents=frame.contents, last_lease=frame.last_lease, log=log)
    return restored, ACK


def applied(server: Server, update: int, lease: int, log: tuple[int, ...]) -> Server:
    contents = (*server.contents, update)
    return server._replace(contents=contents, last_lease=lease, log=log)


def logged(log: tuple[int, ...], client: int, sequence: int) -> tuple[int, ...]:
    return (*log[:client], max(sequence, log[client]), *log[client + 1 :])
