"""What a primary does: apply, replicate, acknowledge, fill; and how a server becomes one or dies.

Each function takes a world and returns the one after a single step. A step is what a lane does
without looking away: handle one frame, one answer, one placement.
"""

from __future__ import annotations

from benchmarks.protocol_model.following import applied, logged
from benchmarks.protocol_model.rules import Rules
from benchmarks.protocol_model.state import (
    ACK,
    ALIGNING,
    DIFFERENT,
    DOWN,
    IN_STEP,
    OUT_OF_STEP,
    STALE,
    UPDATE,
    Answer,
    Frame,
    Place,
    Server,
    Wire,
    World,
)
from benchmarks.protocol_model.wires import align, leave_all, left, snapshot, with_server


def apply(
    world: World, number: int, update: int, client: int, sequence: int, rules: Rules
) -> World:
    """A primary admits a client's update and sends it to the copies that are in step."""
    server = world.servers[number]
    frame = Frame(UPDATE, server.lease, len(server.contents), server.last_lease, update)
    if rules.log_in_update:
        frame = frame._replace(log=(client, sequence))
    wires = list(world.wires)
    for copy in range(len(world.servers)):
        at = number * len(world.servers) + copy
        wire = wires[at]
        if wire.phase == IN_STEP or (wire.phase == ALIGNING and wire.eager):
            wires[at] = wire._replace(frames=(*wire.frames, frame))
    changed = applied(server, update, server.lease, logged(server.log, client, sequence))
    begun = max(world.begun, update + 1)
    return with_server(world, number, changed, wires)._replace(begun=begun)


def required(world: World, number: int, rules: Rules) -> set[int]:
    """The copies without whose acknowledgement this primary answers nobody."""
    server = world.servers[number]
    view = server.view
    assert view is not None
    needed = set(view.mirrors)
    if not rules.wait_for_controller:
        first = number * len(world.servers)
        needed = {copy for copy in needed if world.wires[first + copy].phase != DOWN}
    for entry in view.joining:
        wire = world.wires[number * len(world.servers) + entry[0]]
        in_step = wire.phase == IN_STEP and (rules.required_when_sent or wire.acked > 0)
        sticky = rules.required_once_reported and entry in server.reported
        if in_step or sticky:
            needed.add(entry[0])
    return needed


def safe(world: World, number: int, update: int, rules: Rules) -> bool:
    """Whether a primary may acknowledge an update that it has applied."""
    if not rules.wait_for_copies:
        return True
    server = world.servers[number]
    if update in server.contents:
        version = server.contents.index(update) + 1
    else:
        version = len(server.contents)  # known by the log alone
    if not rules.replays_wait and server.last_lease != server.lease:
        return True
    return all(
        world.wires[number * len(world.servers) + copy].acked > version
        for copy in required(world, number, rules)
    )


def connect(world: World, number: int, copy: int, rules: Rules) -> World:
    """A connection comes up, or a listed copy gets its first Align on one that is up."""
    at = number * len(world.servers) + copy
    wire = world.wires[at]
    if wire.phase == DOWN:
        target = world.servers[copy].incarnation
        wire = wire._replace(target=target, frames=(), answers=(), page=0)
    wires = list(world.wires)
    wires[at] = align(wire, world.servers[number], copy, rules)
    return world._replace(wires=tuple(wires))


def take_answer(world: World, at: int, rules: Rules) -> World:
    """A primary handles the next answer on a connection."""
    number, copy = divmod(at, len(world.servers))
    wire = world.wires[at]
    answer = wire.answers[0]
    wire = wire._replace(answers=wire.answers[1:])
    if not answer.void:
        wire = _answered(wire, answer, world.servers[number], copy, rules)
    wires = list(world.wires)
    wires[at] = wire
    return world._replace(wires=tuple(wires))


def _answered(wire: Wire, answer: Answer, server: Server, copy: int, rules: Rules) -> Wire:
    if answer.kind == STALE:
        return wire._replace(phase=DOWN, frames=(), answers=())
    if answer.kind == ACK:
        return wire._replace(acked=max(wire.acked, answer.version + 1))
    if answer.kind == OUT_OF_STEP:
        return align(wire, server, copy, rules)
    if wire.phase != ALIGNING:
        return wire
    moved_on = answer.version != len(server.contents) and not wire.eager
    if answer.kind == DIFFERENT or (moved_on and rules.moved_on_since_align):
        return snapshot(wire, server)
    return wire._replace(phase=IN_STEP, acked=answer.version + 1)


def can_post(wire: Wire) -> bool:
    """Whether the next frame is an update to a dead copy that had answered everything before it.

    One that knew another lease had closed its page before it did anything under that.
    """
    at_rest = wire.phase == IN_STEP and bool(wire.frames) and not wire.answers
    if not at_rest:
        return False
    frame = wire.frames[0]
    in_turn = frame.kind == UPDATE and not frame.void and wire.acked == frame.version + 1
    return in_turn and frame.lease == wire.page


def post(world: World, at: int) -> World:
    """A primary writes an update into the memory of a copy that is dead, and does not know it.

    Into the memory of one that lives: that is as if the copy took the frame and answered at once.
    """
    wire = world.wires[at]
    wires = list(world.wires)
    wires[at] = wire._replace(frames=wire.frames[1:], acked=wire.acked + 1)
    return world._replace(wires=tuple(wires))


def report(world: World, number: int, entry: tuple[int, int]) -> World:
    """A primary tells that a joining copy is in step; the report may arrive late, or often."""
    server = world.servers[number]
    assert server.view is not None
    told = (*entry, server.lease)
    reports = tuple(sorted({*world.reports, told}))
    reported = tuple(sorted({*server.reported, entry}))
    return with_server(world, number, server._replace(reported=reported))._replace(reports=reports)


def in_step_entries(world: World, number: int, rules: Rules) -> list[tuple[int, int]]:
    """The entries that a primary may report now."""
    server = world.servers[number]
    assert server.view is not None
    found = []
    for entry in server.view.joining:
        wire = world.wires[number * len(world.servers) + entry[0]]
        acknowledged = wire.acked > 0 or not rules.in_step_when_acknowledged
        in_step = wire.phase == IN_STEP and acknowledged
        if not rules.entry_of_event:  # an event of an older entry still waits to be read
            in_step = in_step or any(entry[0] == older for older, _ in server.reported)
        if in_step and entry not in server.reported:
            found.append(entry)
    return found


def learn(world: World, number: int, place: Place, rules: Rules) -> World:
    """A server applies a placement that names it, however late."""
    server = world.servers[number]
    if place.primary == number:
        return _lead(world, number, place, rules)
    wires = list(world.wires)
    leave_all(wires, number, len(world.servers))
    lease = max(server.lease, place.lease)
    changed = server._replace(known=place.version, lease=lease, view=None, reported=())
    if number not in place.copies() and not rules.keep_contents:
        log = tuple(0 for _ in server.log)
        changed = changed._replace(contents=(), last_lease=0, log=log)
    return with_server(world, number, changed, wires)


def _lead(world: World, number: int, place: Place, rules: Rules) -> World:
    before, count = world.servers[number], len(world.servers)
    old = before.view
    kept = place.joining if place.lease == before.lease else ()
    kept = kept if rules.entry_of_event else before.reported
    reported = tuple(entry for entry in before.reported if entry in kept)
    server = before._replace(known=place.version, lease=place.lease, view=place, reported=reported)
    wires = list(world.wires)
    for copy in range(count):
        at = number * count + copy
        if copy == number:
            continue
        if copy not in place.copies():
            wires[at] = left(wires[at])
            continue
        since = place.since(copy)
        new_entry = since is not None and wires[at].stamp != since
        if not rules.new_entry_new_start and old is not None and copy in old.copies():
            new_entry = False
        new_lease = place.lease != before.lease
        if new_lease and not rules.align_at_new_lease:
            new_lease = False
        if new_entry or new_lease:
            wires[at] = _renewed(wires[at], since or 0, server, copy, rules)
    return with_server(world, number, server, wires)


def _renewed(wire: Wire, stamp: int, server: Server, copy: int, rules: Rules) -> Wire:
    """Another entry or another lease: what is known of the copy is forgotten, and it is asked."""
    wire = wire._replace(stamp=stamp, acked=0)
    up = wire.phase in (ALIGNING, IN_STEP)
    return align(wire, server, copy, rules) if up else wire


def crash(world: World, number: int) -> World:
    """A server dies and is started again, empty. A dead one is one that does nothing any more."""
    count = len(world.servers)
    wires = list(world.wires)
    server = world.servers[number]
    for at in range(number, count * count, count):  # what was sent to it; answers still travel
        page = server.lease if wires[at].phase == IN_STEP else 0
        wires[at] = wires[at]._replace(frames=(), ghosts=(), page=page)
    leave_all(wires, number, count)
    log = tuple(0 for _ in server.log)
    fresh = Server(server.incarnation + 1, 0, 0, 0, (), log, None, ())
    return with_server(world, number, fresh, wires)._replace(crashes_left=world.crashes_left - 1)
