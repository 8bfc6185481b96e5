"""The scenes that are searched: who holds a copy at the beginning and how much may happen.

Scenes rather than one large search: the number of states grows tenfold with every further crash or
change of placement, and each kind of mistake needs only a few of one sort. In a hunt for a broken
rule the controller may follow a script, so that a long way is found soon; all others are free.
"""

from __future__ import annotations

from benchmarks.protocol_model.search import Bounds

ONE = ((0, 1),)  # one update
IN_TURN = ((0, 1), (0, 2))  # two of one client
# Two of two clients are the default.

QUICK = (
    Bounds("3 copies, 1 update, a change, a crash", (1, 2), ONE, placements=1, breaks=0, frames=1),
    Bounds("2 copies, 1 update, 2 changes, a crash", (1,), ONE, placements=2, breaks=0, frames=1),
    Bounds("2 copies, 1 update, a change, a crash, a break", (1,), ONE, placements=1, frames=1),
    Bounds("1 copy, 2 updates, a change, a break", (), placements=1, crashes=0),
)
FULL = (
    *QUICK,
    Bounds("3 copies, 2 updates, a change, a crash", (1, 2), placements=1, breaks=0, frames=1),
    Bounds("2 copies, 1 update, 3 changes", (1,), ONE, placements=3, crashes=0, breaks=0, frames=1),
    Bounds("1 copy, 1 update, 4 changes", (), ONE, placements=4, crashes=0, breaks=0, frames=1),
    Bounds("2 copies, 2 in turn, 2 changes", (1,), IN_TURN, placements=2, crashes=0, breaks=0),
    Bounds(
        "2 copies, 1 update, 2 changes, late answers",
        (1,),
        ONE,
        placements=2,
        crashes=0,
        breaks=0,
        frames=1,
        prompt=False,
    ),
    Bounds("2 copies, 1 update, 3 changes, a crash", (1,), ONE, placements=3, breaks=0, frames=1),
)

_AWAY_AND_BACK = (("hand over to", 2), ("hand over to", 0))
_AGAIN = (("join", 1), ("lose", 1), ("join", 1), ("accept", 1))
HUNTS = (
    Bounds("joins again", (), ONE, crashes=0, breaks=0, script=_AGAIN),
    Bounds(
        "leaves and joins again",
        (1,),
        ONE,
        breaks=0,
        frames=1,
        script=(("lose", 1), ("join", 1), ("accept", 1)),
    ),
    Bounds("a joining copy", (1,), crashes=0, script=(("join", 2), ("accept", 2))),
    Bounds("a joining copy is promoted", (1,), ONE, script=(("join", 2), ("promote", 2))),
    QUICK[2],
    QUICK[0],
    Bounds(
        "joins under two leases",
        (1,),
        ONE,
        crashes=0,
        breaks=0,
        script=(("join", 2), ("hand over to", 1), ("accept", 2)),
    ),
    Bounds("an update beside an Align", (1, 2), crashes=0, breaks=0, script=(("promote", 1),)),
    Bounds("away and back", (1, 2), ONE, crashes=0, breaks=0, frames=1, script=_AWAY_AND_BACK),
)
