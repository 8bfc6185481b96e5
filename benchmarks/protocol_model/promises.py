"""What must hold in every state, in the words of `docs/protocol.md`.

The first is stronger than "an acknowledged update is never lost": at every moment it must be on
every living copy that the registry might promote, not only where somebody reads it later.
"""

from __future__ import annotations

from benchmarks.protocol_model.state import Server, World


def broken_promise(world: World) -> str | None:
    """A sentence about the first promise that does not hold here; None when all do."""
    return _lost(world) or _doubled(world) or _different(world)


def _lost(world: World) -> str | None:
    place = world.history[-1]
    for number in (place.primary, *place.mirrors):
        server = world.servers[number]
        if server.incarnation != place.incarnations[number]:
            continue  # that process is dead
        for update in world.acked:
            if update not in server.contents:
                role = "the primary" if number == place.primary else "a mirror"
                return f"update {update} was acknowledged, and server {number}, {role}, lacks it"
    return None


def _doubled(world: World) -> str | None:
    for number, server in enumerate(world.servers):
        if len(set(server.contents)) < len(server.contents):
            return f"server {number} applied an update twice: {server.contents}"
    return None


def _different(world: World) -> str | None:
    seen: dict[tuple[int, int], Server] = {}
    for server in world.servers:
        other = seen.setdefault(server.position, server)
        if other.contents != server.contents:
            both = f"{server.contents} and {other.contents}"
            return f"two servers at the position {server.position} hold {both}"
    return None
