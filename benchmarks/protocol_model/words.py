"""A trace of the model in words, one line for each step."""

from __future__ import annotations

from typing import Any

from benchmarks.protocol_model.state import Frame, Place, World

NAMES = "ABCDEFG"
VERBS = {"apply": "applies", "acknowledge": "acknowledges"}


def told(trace: list[tuple[tuple[Any, ...], World]]) -> list[str]:
    """What happened, step by step, and how it ended."""
    lines = [_step(label, world) for label, world in trace]
    return [f"{number:2}. {line}" for number, line in enumerate(lines, 1)]


def _step(label: tuple[Any, ...], world: World) -> str:
    kind, *rest = label
    if kind == "controller":
        return f"controller: {_change(*rest)} -> {_place(world.history[-1])}"
    if kind in ("apply", "acknowledge"):
        number, update = rest
        return f"{NAMES[number]} {VERBS[kind]} update {update}{_held(world, number)}"
    if kind in ("frame", "ghost"):
        sender, copy, frame = rest
        late = " of an older connection" if kind == "ghost" else ""
        return f"{NAMES[copy]} takes {_frame(frame)} of {NAMES[sender]}{late}{_held(world, copy)}"
    if kind == "post":
        sender, copy, frame = rest
        return f"{NAMES[sender]} posts {_frame(frame)} into the memory of {NAMES[copy]}, now dead"
    if kind == "answer":
        sender, copy, answer = rest
        text = f"{answer.kind} (version {answer.version}, lease {answer.lease})"
        text += ", which means nothing any more," if answer.void else ""
        return f"{NAMES[sender]} hears {text} from {NAMES[copy]}"
    if kind == "learn":
        number, place = rest
        return f"{NAMES[number]} learns {_place(place)}{_held(world, number)}"
    if kind == "report":
        number, (server, since) = rest
        return f"{NAMES[number]} reports {NAMES[server]} in step, entry {since}"
    if kind == "crash":
        return f"{NAMES[rest[0]]} dies and starts again, empty"
    ends = " to ".join(NAMES[number] for number in rest)
    happens = {"connect": "comes up", "break": "breaks"}.get(kind, "breaks; its frames come late")
    return f"the connection {ends} {happens}"


def _change(action: str, server: int, report: tuple[int, int, int] | None = None) -> str:
    if report is not None:
        return f"accept {NAMES[server]} of entry {report[1]}, lease {report[2]}"
    return f"{action} {NAMES[server]}"


def _place(place: Place) -> str:
    mirrors = "".join(NAMES[server] for server in place.mirrors)
    joining = "".join(f"{NAMES[server]}@{since}" for server, since in place.joining)
    return (
        f"placement {place.version}: {NAMES[place.primary]}, lease {place.lease}, "
        f"mirrors [{mirrors}], joining [{joining}]"
    )


def _frame(frame: Frame) -> str:
    if frame.kind == "Align":
        return f"Align at ({frame.last_lease}, {frame.version}), lease {frame.lease}"
    if frame.kind == "Snapshot":
        return f"Snapshot {list(frame.contents)}, lease {frame.lease}"
    return f"update {frame.update} at {frame.version}, lease {frame.lease}"


def _held(world: World, number: int) -> str:
    return f"; {NAMES[number]} holds {list(world.servers[number].contents)}"
