"""A real slowdown of a process: it is stopped and let go again, many times a second.

A helper process does it (SIGSTOP, SIGCONT), so that it works on any contestant, whatever it is
written in. A process that runs a quarter of the time is four times slower in everything it does,
also in answering. The helper ends with the benchmark and leaves its targets running.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType

PERIOD_S = 0.04


class Slowdown:
    """Processes that run `share` of the time. A context manager; leaving it lets them go."""

    def __init__(self, pids: Sequence[int], share: float = 0.25) -> None:
        self._pids = list(pids)
        self._share = share

    def __enter__(self) -> Slowdown:
        command = [sys.executable, __file__, str(self._share), *map(str, self._pids)]
        self._helper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._helper.stdout is not None
        self._helper.stdout.readline()  # it has begun
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        self._helper.stdin.close()
        self._helper.wait()
        self._helper.stdout.close()


def hold_back(pids: Sequence[int], share: float) -> None:
    """Stop and go until stdin closes, which it does when whoever started this is gone."""
    print("ready", flush=True)
    began, period = time.monotonic(), 0
    try:
        while True:
            # Times are counted from the beginning: a helper that wakes late doesn't drift.
            _send(pids, signal.SIGCONT)
            if _closed_within(began + (period + share) * PERIOD_S - time.monotonic()):
                return
            _send(pids, signal.SIGSTOP)
            period = max(period + 1, int((time.monotonic() - began) / PERIOD_S))
            if _closed_within(began + period * PERIOD_S - time.monotonic()):
                return
    finally:
        _send(pids, signal.SIGCONT)


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _closed_within(seconds: float) -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], max(0.0, seconds))
    return bool(readable)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds: the targets are let go
    hold_back([int(pid) for pid in sys.argv[2:]], float(sys.argv[1]))
