"""Breadth-first search through every state of the model, with the shortest way to a broken promise.

States are kept as short tuples of numbers: each part of a world (a server, a connection, ...) is
stored once and named by its number, so that a million states fit in memory and no two states can
be taken for one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from benchmarks.protocol_model import controller, following, leading
from benchmarks.protocol_model.promises import broken_promise
from benchmarks.protocol_model.rules import PROTOCOL, Rules
from benchmarks.protocol_model.state import (
    ALIGNING,
    DOWN,
    IN_STEP,
    LEFT,
    NO_WIRE,
    Place,
    Server,
    Wire,
    World,
)
from benchmarks.protocol_model.wires import lose_connection

Key = tuple[int, ...]
Step = tuple[tuple[Any, ...], World]


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of the world is searched."""

    name: str
    mirrors: tuple[int, ...]  # at the beginning; server 0 is the primary
    updates: tuple[tuple[int, int], ...] = ((0, 1), (1, 1))  # (client, sequence)
    servers: int = 3
    placements: int = 3  # changes by the controller
    crashes: int = 1
    breaks: int = 1  # connections that are lost while both ends live
    frames: int = 2  # under way on one connection
    prompt: bool = True  # answers arrive at once, or else as late as they like
    script: tuple[tuple[str, int], ...] = ()  # the controller's changes, where it is not free


@dataclass(slots=True)
class Found:
    """What a search came to."""

    states: int
    steps: int
    depth: int
    complete: bool
    broken: str | None = None
    trace: list[tuple[tuple[Any, ...], World]] = field(default_factory=list)


def beginning(bounds: Bounds) -> World:
    incarnations = (1,) * bounds.servers
    place = Place(1, 0, 1, bounds.mirrors, (), incarnations)
    log = tuple(0 for _ in {client for client, _ in bounds.updates})
    servers = tuple(
        Server(1, 1, 1, 0, (), log, place if number == 0 else None, ())
        for number in range(bounds.servers)
    )
    ready = Wire(IN_STEP, target=1, acked=1)
    wires = [NO_WIRE] * bounds.servers**2
    for mirror in bounds.mirrors:
        wires[mirror] = ready
    return World((place,), servers, tuple(wires), (), (), 0, bounds.crashes, bounds.breaks)


def steps(world: World, bounds: Bounds, rules: Rules) -> Iterator[Step]:
    """Everything that can happen next."""
    yield from _client_steps(world, bounds, rules)
    yield from _wire_steps(world, bounds, rules)
    yield from _server_steps(world, rules)
    done = world.history[-1].version - 1
    if done < (len(bounds.script) or bounds.placements):
        for label, place in controller.changes(world, rules):
            if not bounds.script or bounds.script[done] == label[:2]:
                yield ("controller", *label), world._replace(history=(*world.history, place))


def _client_steps(world: World, bounds: Bounds, rules: Rules) -> Iterator[Step]:
    """A frame of a client may come to any server, at any time after it was sent, and again."""
    for number, server in enumerate(world.servers):
        if server.view is None:
            continue
        for update, (client, sequence) in enumerate(bounds.updates):
            if update > world.begun:
                break
            if sequence > 1 and bounds.updates.index((client, sequence - 1)) not in world.acked:
                continue
            if server.log[client] >= sequence:
                if update not in world.acked and leading.safe(world, number, update, rules):
                    acked = tuple(sorted((*world.acked, update)))
                    yield ("acknowledge", number, update), world._replace(acked=acked)
                if rules.recognise_replays:
                    continue
            if len(server.contents) <= len(bounds.updates) and _room(world, number, bounds):
                after = leading.apply(world, number, update, client, sequence, rules)
                yield ("apply", number, update), after


def _room(world: World, number: int, bounds: Bounds) -> bool:
    first = number * bounds.servers
    wires = world.wires[first : first + bounds.servers]
    return all(len(wire.frames) < bounds.frames for wire in wires)


def _wire_steps(world: World, bounds: Bounds, rules: Rules) -> Iterator[Step]:
    for at, wire in enumerate(world.wires):
        if wire is NO_WIRE:
            continue
        sender, copy = divmod(at, bounds.servers)
        alive = wire.target == world.servers[copy].incarnation
        if wire.frames and alive:
            after = following.take_frame(world, at, rules)
            if bounds.prompt and after.wires[at].answers:
                after = leading.take_answer(after, at, rules)
            yield ("frame", sender, copy, wire.frames[0]), after
        if not alive and leading.can_post(wire):
            yield ("post", sender, copy, wire.frames[0]), leading.post(world, at)
        if wire.ghosts:
            yield ("ghost", sender, copy, wire.ghosts[0]), following.take_ghost(world, at, rules)
        if wire.answers:
            yield ("answer", sender, copy, wire.answers[0]), leading.take_answer(world, at, rules)
        if world.breaks_left and wire.phase in (ALIGNING, IN_STEP, LEFT):
            lost = lose_connection(world, at, frames_arrive=False)
            yield ("break", sender, copy), lost
            if wire.frames:
                late = lose_connection(world, at, frames_arrive=True)
                yield ("break late", sender, copy), late


def _server_steps(world: World, rules: Rules) -> Iterator[Step]:
    for number, server in enumerate(world.servers):
        for place in world.history:
            if _would_learn(number, server, place, rules):
                after = leading.learn(world, number, place, rules)
                yield ("learn", number, place), after
        if world.crashes_left:
            yield ("crash", number), leading.crash(world, number)
        if server.view is None:
            continue
        for entry in leading.in_step_entries(world, number, rules):
            yield ("report", number, entry), leading.report(world, number, entry)
        for copy in server.view.copies():
            if copy != number and _can_connect(world, number, copy, rules):
                yield ("connect", number, copy), leading.connect(world, number, copy, rules)


def _would_learn(number: int, server: Server, place: Place, rules: Rules) -> bool:
    """Placements that leave a server what it is are left out: it may as well learn them later."""
    if place.version <= server.known or place.lease < server.lease:
        return False
    if rules.own_incarnation_only and place.incarnations[number] != server.incarnation:
        return False
    forgets = not rules.keep_contents and number not in place.copies()
    return place.primary == number or server.view is not None or forgets


def _can_connect(world: World, number: int, copy: int, rules: Rules) -> bool:
    wire = world.wires[number * len(world.servers) + copy]
    if wire.phase not in (DOWN, LEFT):
        return False
    view = world.servers[number].view
    assert view is not None
    meant = view.incarnations[copy] == world.servers[copy].incarnation
    return meant or not rules.bound_connections


def tidied(world: World, rules: Rules) -> World:
    """Without placements that nobody will learn and reports that nobody will accept."""
    present = world.history[-1]
    if rules.compare_and_swap:
        learnable = tuple(
            place
            for place in world.history[:-1]
            if any(_would_learn(n, s, place, rules) for n, s in enumerate(world.servers))
        )
        world = world._replace(history=(*learnable, present))
        if rules.entry_of_report:
            reports = tuple(r for r in world.reports if r[:2] in present.joining)
            world = world._replace(reports=reports)
    return world


class _Store:
    """Every part of a world once, by number."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._parts: list[Any] = []

    def key(self, world: World) -> Key:
        parts = (world.history, *world.servers, *world.wires, world.reports, world.acked)
        numbers = self._numbers
        named = []
        for part in parts:
            number = numbers.get(part)
            if number is None:
                number = numbers[part] = len(self._parts)
                self._parts.append(part)
            named.append(number)
        return (*named, world.begun, world.crashes_left, world.breaks_left)

    def world(self, key: Key, servers: int) -> World:
        parts = [self._parts[number] for number in key[:-3]]
        wires = tuple(NO_WIRE if wire == NO_WIRE else wire for wire in parts[1 + servers : -2])
        own = tuple(parts[1 : 1 + servers])
        return World(parts[0], own, wires, parts[-2], parts[-1], *key[-3:])


def search(bounds: Bounds, rules: Rules = PROTOCOL, *, limit: int = 10_000_000) -> Found:
    """Every state within bounds, until a promise is broken or `limit` states were seen."""
    store = _Store()
    first = store.key(beginning(bounds))
    before: dict[Key, Key | None] = {first: None}
    depths = deque([(first, 0)])
    taken = depth = 0
    while depths:
        key, depth = depths.popleft()
        world = store.world(key, bounds.servers)
        for _, after in steps(world, bounds, rules):
            taken += 1
            after = tidied(after, rules)
            next_key = store.key(after)
            if next_key in before:
                continue
            before[next_key] = key
            broken = broken_promise(after)
            if broken is not None:
                trace = _trace(next_key, before, store, bounds, rules)
                return Found(len(before), taken, depth + 1, False, broken, trace)
            depths.append((next_key, depth + 1))
        if len(before) >= limit:
            return Found(len(before), taken, depth, False)
    return Found(len(before), taken, depth, True)


def _trace(
    last: Key, before: dict[Key, Key | None], store: _Store, bounds: Bounds, rules: Rules
) -> list[Step]:
    keys = [last]
    while (earlier := before[keys[-1]]) is not None:
        keys.append(earlier)
    keys.reverse()
    found = []
    for key, later in pairwise(keys):
        world = store.world(key, bounds.servers)
        for label, after in steps(world, bounds, rules):
            if store.key(tidied(after, rules)) == later:
                found.append((label, tidied(after, rules)))
                break
    return found
