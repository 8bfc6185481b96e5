"""A model of the memory that a primary shows to a copy which has not applied what lies there.

One chunk, one copy, two blocks of memory that are used again and again. Every state is searched in
which a copy may be asked for its contents: what waits there must still be what was sent, and the
copy must have all that the primary believes it has. Updates are sent or posted, frames arrive late,
connections break with frames unread, the copy closes its page at any time, and the primary goes on
all the while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

UPDATES = 4
BLOCKS = 2
BREAKS = 2

LATE, NOW, SNAPSHOT, SHARE = "may wait", "may not wait", "Snapshot", "Share"


@dataclass(frozen=True, slots=True)
class LendingRules:
    """All True: the protocol."""

    lent_after_the_answer: bool = True  # what may wait stays until a later frame was answered
    lent_after_a_break: bool = True  # what was shown stays until the next Share was answered
    later_frame_applies: bool = True  # what waits is applied before such a frame is answered
    share_applies: bool = True  # and before a Share is
    post_at_rest: bool = True  # the copy has answered everything and is where the primary is
    closed_takes_nothing: bool = True  # what comes too late for a page is not counted there
    posted_comes_first: bool = True  # the copy takes what was posted before it handles a frame


LENDING = LendingRules()


def lending_mutations() -> dict[str, LendingRules]:
    return {rule.name: replace(LENDING, **{rule.name: False}) for rule in fields(LendingRules)}


class Frame(NamedTuple):
    """Of an update: its number and the block that it lies in."""

    kind: str
    number: int
    block: int = -1


class Lent(NamedTuple):
    """Both ends and what is between them."""

    blocks: tuple[int, ...] = (0,) * BLOCKS  # the update that lies in each
    sent: int = 0
    frames: tuple[Frame, ...] = ()
    unread: tuple[Frame, ...] = ()  # of an older connection, until the copy takes the next
    answers: tuple[bool, ...] = ()  # whether the frame was taken
    unanswered: tuple[Frame, ...] = ()
    kept: tuple[int, ...] = ()  # blocks that were answered and are lent still
    haunted: tuple[int, ...] = ()  # blocks that were shown over older connections
    is_up: bool = True
    position: int = 0  # updates that the copy has
    waiting: tuple[tuple[int, int], ...] = ()  # of those, (number, block) of what is not applied
    acked: int = 0  # updates that the primary knows the copy to have; -1: nothing is known
    is_open: bool = True  # the copy's page
    posted: tuple[tuple[int, int], ...] = ()  # (number, block) of what lies there
    breaks: int = 0


Step = tuple[str, Lent]


def steps(state: Lent, rules: LendingRules) -> Iterator[Step]:
    """Everything that can happen next."""
    yield from _primary(state, rules)
    if state.is_open:
        yield "the copy closes its page", _looked_up(state)._replace(is_open=False)
    if state.unread:
        after = _taken(state, state.unread[0], rules)[0]
        yield "an older frame is read", after._replace(unread=state.unread[1:], is_open=False)
    if state.is_up and state.frames:
        after, taken = _taken(state, state.frames[0], rules)
        yield (
            f"the copy reads {state.frames[0]}",
            after._replace(frames=state.frames[1:], unread=(), answers=(*state.answers, taken)),
        )


def _primary(state: Lent, rules: LendingRules) -> Iterator[Step]:
    lent = {*state.kept, *state.haunted, *(frame.block for frame in state.unanswered)}
    free = [block for block in range(BLOCKS) if block not in lent]
    if state.is_up and state.sent < UPDATES:
        number = state.sent + 1
        for kind in (LATE, NOW) if free else ():
            blocks = tuple(number if b == free[0] else old for b, old in enumerate(state.blocks))
            after = _sent(state._replace(blocks=blocks), Frame(kind, number, free[0]))
            yield f"update {number}, which {kind}, into block {free[0]}", after
        yield f"a snapshot with update {number}", _sent(state, Frame(SNAPSHOT, number))
        at_rest = not state.unanswered and state.acked == state.sent
        may_post = at_rest or not rules.post_at_rest
        if free and may_post and (state.is_open or not rules.closed_takes_nothing):
            yield f"update {number} is posted, in block {free[0]}", _posted(state, free[0], rules)
    if state.answers:
        yield "an answer", _answered(state, rules)
    if state.is_up and state.breaks < BREAKS:
        shown = {*state.kept, *(f.block for f in state.unanswered if f.block >= 0)}
        haunted = {*state.haunted, *shown} if rules.lent_after_a_break else {*state.haunted}
        yield (
            "the connection breaks",
            state._replace(
                frames=(),
                unread=(*state.unread, *state.frames),
                answers=(),
                unanswered=(),
                kept=(),
                haunted=tuple(sorted(haunted)),
                is_up=False,
                acked=-1,
                breaks=state.breaks + 1,
            ),
        )
    if not state.is_up:
        share = Frame(SHARE, state.sent)
        yield "a new connection", _sent(state._replace(is_up=True), share)


def _posted(state: Lent, block: int, rules: LendingRules) -> Lent:
    number = state.sent + 1
    blocks = tuple(number if b == block else old for b, old in enumerate(state.blocks))
    kept = (*state.kept, block) if rules.lent_after_the_answer else state.kept
    posted = (*state.posted, (number, block)) if state.is_open else state.posted
    return state._replace(sent=number, acked=number, blocks=blocks, kept=kept, posted=posted)


def _looked_up(state: Lent) -> Lent:
    """The copy takes what was posted, as far as it follows on what it has."""
    for number, block in state.posted:
        if number == state.position + 1:
            waiting = (*state.waiting, (number, block))
            state = state._replace(position=number, waiting=waiting)
    return state._replace(posted=())


def _sent(state: Lent, frame: Frame) -> Lent:
    return state._replace(
        sent=frame.number,
        frames=(*state.frames, frame),
        unanswered=(*state.unanswered, frame),
    )


def _answered(state: Lent, rules: LendingRules) -> Lent:
    frame, taken = state.unanswered[0], state.answers[0]
    state = state._replace(unanswered=state.unanswered[1:], answers=state.answers[1:])
    if not taken:
        return state
    if frame.kind == SHARE:
        return state._replace(haunted=())
    state = state._replace(acked=frame.number)
    if frame.kind != LATE:
        return state._replace(kept=())
    kept = (*state.kept, frame.block) if rules.lent_after_the_answer else state.kept
    return state._replace(kept=kept)


def _taken(state: Lent, frame: Frame, rules: LendingRules) -> tuple[Lent, bool]:
    """The copy handles a frame: what it is then, and whether it took it."""
    state = _looked_up(state) if rules.posted_comes_first else state._replace(posted=())
    state = state._replace(is_open=frame.kind != SHARE)
    if frame.kind == SHARE:
        return (state._replace(waiting=()) if rules.share_applies else state), True
    if frame.kind == SNAPSHOT:
        if frame.number < state.position:
            return state, False
        return state._replace(position=frame.number, waiting=()), True
    if frame.number != state.position + 1:
        return state, False
    waits = (*state.waiting, (frame.number, frame.block))
    if frame.kind == NOW:
        waits = () if rules.later_frame_applies else state.waiting
    return state._replace(position=frame.number, waiting=waits), True


def broken(state: Lent) -> str | None:
    """What the copy lacks though it counts as acknowledged, or has and can't apply any more."""
    has = _looked_up(state).position
    if state.acked > has:
        return f"update {state.acked} counts as acknowledged, and the copy has {has}"
    for number, block in (*state.waiting, *state.posted):
        if state.blocks[block] != number:
            return f"update {number} waits in block {block}, where {state.blocks[block]} lies now"
    for frame in (*state.unread[:1], *state.frames[:1]):
        due = frame.block >= 0 and frame.number == state.position + 1
        if due and state.blocks[frame.block] != frame.number:
            return f"update {frame.number} is read from block {frame.block} too late"
    return None


class Searched(NamedTuple):
    """What a search came to; `way` leads to what is broken."""

    states: int
    steps: int
    depth: int
    broken: str | None = None
    way: tuple[str, ...] = ()


def search_lending(rules: LendingRules = LENDING) -> Searched:
    """Every state, until something is lost or overwritten."""
    first = Lent()
    ways: dict[Lent, tuple[Lent | None, str]] = {first: (None, "")}
    due = deque([(first, 0)])
    taken = depth = 0
    while due:
        state, depth = due.popleft()
        for label, after in steps(state, rules):
            taken += 1
            if after in ways:
                continue
            ways[after] = (state, label)
            found = broken(after)
            if found is not None:
                return Searched(len(ways), taken, depth + 1, found, _way(after, ways))
            due.append((after, depth + 1))
    return Searched(len(ways), taken, depth)


def _way(last: Lent, ways: dict[Lent, tuple[Lent | None, str]]) -> tuple[str, ...]:
    labels = []
    state: Lent | None = last
    while state is not None:
        state, label = ways[state]
        labels.append(label)
    return tuple(reversed(labels[:-1]))
