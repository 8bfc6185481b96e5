"""The choice of a display: live on a terminal, plain lines in a pipe."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from manyhands.telemetry.events import Sink
from manyhands.telemetry.plain_lines import PlainLines
from manyhands.telemetry.stream import EventStream


def make_progress(stream: TextIO | None = None) -> Sink:
    """The display that suits `stream` (standard output unless told otherwise)."""
    stream = sys.stdout if stream is None else stream
    if stream is None or stream.closed:  # a program without a console has no standard output
        return EventStream(())
    if not stream.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return PlainLines(stream)
    from manyhands.telemetry.live_display import LiveDisplay

    return LiveDisplay(stream)
