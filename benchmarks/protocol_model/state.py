"""The state of the modelled world: a chunk's copies, what travels between them, the registry.

Everything is a tuple, so that states can be compared and counted. Positions, leases and frames are
those of `docs/protocol.md`; time is not modelled, because nothing in the protocol depends on it: a
pause, a slow network and a late message are all "the others moved first".
"""

from __future__ import annotations

from typing import NamedTuple

# A wire's phase, as the primary sees it.
DOWN, ALIGNING, IN_STEP, LEFT = 0, 1, 2, 3

ALIGN, UPDATE, SNAPSHOT = "Align", "Update", "Snapshot"
SAME, DIFFERENT, ACK, OUT_OF_STEP, STALE = "same", "different", "Ack", "OutOfStep", "StaleLease"


class Place(NamedTuple):
    """A placement of the one bucket: an entry of the registry."""

    version: int
    primary: int
    lease: int
    mirrors: tuple[int, ...]
    joining: tuple[tuple[int, int], ...]  # (server, since)
    incarnations: tuple[int, ...]  # of every server, as the placement names it

    def copies(self) -> tuple[int, ...]:
        return (self.primary, *self.mirrors, *(server for server, _ in self.joining))

    def since(self, server: int) -> int | None:
        """The entry under which a server is being filled; None when it is not."""
        return next((since for joining, since in self.joining if joining == server), None)


class Server(NamedTuple):
    """A server's process and its copy of the chunk."""

    incarnation: int
    known: int  # version of the placement that it applied last
    lease: int  # the highest it has seen
    last_lease: int  # under which its last update was applied
    contents: tuple[int, ...]  # updates in the order in which they were applied
    log: tuple[int, ...]  # last sequence of each client
    view: Place | None  # while it believes itself the primary
    reported: tuple[tuple[int, int], ...]  # entries that it told to be in step

    @property
    def position(self) -> tuple[int, int]:
        return self.last_lease, len(self.contents)


class Frame(NamedTuple):
    """From a primary to a copy."""

    kind: str
    lease: int
    version: int = 0
    last_lease: int = 0
    update: int = 0
    contents: tuple[int, ...] = ()
    log: tuple[int, ...] = ()
    void: bool = False  # sent before the primary began anew: its answer means nothing


class Answer(NamedTuple):
    """From a copy to its primary."""

    kind: str
    lease: int
    version: int = 0
    void: bool = False


class Wire(NamedTuple):
    """The connection on which one server sends to another, in order, and what the sender knows."""

    phase: int = DOWN
    target: int = 0  # the incarnation that it reached: another process hears nothing of it
    stamp: int = 0  # the entry that it serves
    eager: bool = False  # updates are sent beside an Align: a mirror is most likely in step
    acked: int = 0  # nothing, or the acknowledged version plus one
    frames: tuple[Frame, ...] = ()
    answers: tuple[Answer, ...] = ()
    ghosts: tuple[Frame, ...] = ()  # of an older connection: read late, answered in vain
    page: int = 0  # of a copy that died: the lease under which updates may be posted still


NO_WIRE = Wire()


class World(NamedTuple):
    """All of it. The last placement of `history` is the registry's."""

    history: tuple[Place, ...]
    servers: tuple[Server, ...]
    wires: tuple[Wire, ...]  # of server p to server c at p * servers + c
    reports: tuple[tuple[int, int, int], ...]  # (server, since, lease), ever sent
    acked: tuple[int, ...]  # updates whose client has its acknowledgement
    begun: int  # how many updates were ever applied: breaks the symmetry of the clients
    crashes_left: int
    breaks_left: int
