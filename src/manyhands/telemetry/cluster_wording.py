"""How the figures of replicas and servers are put into words, on a terminal and in a pipe."""

from __future__ import annotations

import math

from manyhands.telemetry.events import ClusterProgress
from manyhands.telemetry.wording import counted, speed

_GAP = "  "
_UNITS = ("B", "kB", "MB", "GB", "TB")
_BY_WEIGHT = ("refused", "staleness", "held_up", "servers", "pushed", "pulled")
_WORTH_SAYING = 0.005  # what rounds to 0% is not said


def line(event: ClusterProgress, sample_name: str, *, width: float = math.inf) -> str:
    """The cluster in one line of at most `width` columns: what matters least goes first.

    Empty when there is no room even to count the replicas.
    """
    head = next((form for form in _replicas(event, sample_name) if len(form) <= width), "")
    if not head:
        return ""
    fields = _fields(event)
    room = width - len(head)
    chosen = set()
    for name in _BY_WEIGHT:
        if fields[name] and len(_GAP) + len(fields[name]) <= room:
            chosen.add(name)
            room -= len(_GAP) + len(fields[name])
    return _GAP.join([head, *(field for name, field in fields.items() if name in chosen)])


def _replicas(event: ClusterProgress, sample_name: str) -> list[str]:
    """The replicas and their speed, from the longest form to the shortest."""
    replicas = counted(len(event.replicas), "replica")
    speeds = [replica.samples_per_s for replica in event.replicas]
    each = " + ".join(f"{samples_per_s:,.0f}" for samples_per_s in speeds)
    together = f"{replicas} {speed(sum(speeds), sample_name)}"
    return [f"{replicas} {each} {sample_name}/s", together, replicas] if speeds else [replicas]


def _fields(event: ClusterProgress) -> dict[str, str]:
    """The other fields in their order on the line; an empty one has nothing to say."""
    loads = [f"{load:.0%}" for load in event.server_load]
    held_up = event.held_up >= _WORTH_SAYING
    return {
        "staleness": f"staleness {event.staleness_mean:.1f} (max {event.staleness_max})",
        "pushed": f"pushed {size(event.pushed_bytes_per_s)}/s",
        "pulled": f"pulled {size(event.pulled_bytes_per_s)}/s",
        "servers": " ".join(["servers", *loads]) if loads else "",
        "held_up": f"held up {event.held_up:.0%}" if held_up else "",
        "refused": f"refused {event.refused:,}" if event.refused else "",
    }


def size(size_bytes: float) -> str:
    """812 B, 1.2 kB, 71 MB."""
    if not math.isfinite(size_bytes):
        return "? B"
    for unit in _UNITS:
        if size_bytes < 999.5 or unit == _UNITS[-1]:
            break
        size_bytes /= 1000
    digits = 1 if size_bytes < 9.95 and unit != "B" else 0
    return f"{size_bytes:.{digits}f} {unit}"
