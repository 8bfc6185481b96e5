"""What the controller does: every change of a placement that its policies could come to.

It is modelled as knowing nothing: it may take any living server for dead and any dead one for alive
at any moment. What it may not do is what the protocol forbids it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.protocol_model.rules import Rules
from benchmarks.protocol_model.state import Place, World

Change = tuple[tuple[Any, ...], Place]


def changes(world: World, rules: Rules) -> Iterator[Change]:
    """Every next placement, with what led to it."""
    present = world.history[-1]
    bases = (present,) if rules.compare_and_swap else world.history
    for base in bases:
        for label, place in _from(base, world, rules):
            yield label, place._replace(version=present.version + 1)


def _from(place: Place, world: World, rules: Rules) -> Iterator[Change]:
    yield from _losses(place)
    yield from _promotions(place, rules)
    yield from _joins(place, world)
    yield from _accepted(place, world, rules)
    if not rules.controller_sees_restarts:
        yield from _restarts_overlooked(place, world)


def _losses(place: Place) -> Iterator[Change]:
    for mirror in place.mirrors:
        left = tuple(m for m in place.mirrors if m != mirror)
        yield ("lose", mirror), place._replace(mirrors=left)
    for entry in place.joining:
        left_joining = tuple(e for e in place.joining if e != entry)
        yield ("lose", entry[0]), place._replace(joining=left_joining)


def _promotions(place: Place, rules: Rules) -> Iterator[Change]:
    """The primary is lost and leaves, or hands over and stays as a mirror."""
    lease = place.lease + (1 if rules.raise_lease else 0)
    candidates = list(place.mirrors)
    if not rules.promote_mirrors_only:
        candidates += [server for server, _ in place.joining]
    for server in candidates:
        joining = tuple(entry for entry in place.joining if entry[0] != server)
        left = tuple(m for m in place.mirrors if m != server)
        promoted = place._replace(primary=server, lease=lease, joining=joining)
        yield ("promote", server), promoted._replace(mirrors=left)
        stays = tuple(sorted((*left, place.primary)))
        yield ("hand over to", server), promoted._replace(mirrors=stays)


def _joins(place: Place, world: World) -> Iterator[Change]:
    version = world.history[-1].version + 1
    for number, server in enumerate(world.servers):
        if number in place.copies():
            continue
        incarnations = (
            *place.incarnations[:number],
            server.incarnation,
            *place.incarnations[number + 1 :],
        )
        joining = tuple(sorted((*place.joining, (number, version))))
        yield ("join", number), place._replace(joining=joining, incarnations=incarnations)


def _accepted(place: Place, world: World, rules: Rules) -> Iterator[Change]:
    for report in world.reports:
        server, since, lease = report
        listed = place.since(server)
        if listed is None or (rules.entry_of_report and listed != since):
            continue
        if rules.lease_of_report and lease != place.lease:
            continue
        mirrors = tuple(sorted((*place.mirrors, server)))
        joining = tuple(entry for entry in place.joining if entry[0] != server)
        yield ("accept", server, report), place._replace(mirrors=mirrors, joining=joining)


def _restarts_overlooked(place: Place, world: World) -> Iterator[Change]:
    for number, server in enumerate(world.servers):
        if place.incarnations[number] != server.incarnation:
            incarnations = (
                *place.incarnations[:number],
                server.incarnation,
                *place.incarnations[number + 1 :],
            )
            yield ("rename", number), place._replace(incarnations=incarnations)
