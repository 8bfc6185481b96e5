"""A real slowdown of processes: they are stopped and let go again, many times a second.

A helper process does it (SIGSTOP, SIGCONT), so that it works on any contestant, whatever it is
written in. A process that runs a quarter of the time is four times slower in everything it does,
also in answering; one that runs none of the time stands still. The helper ends with whoever started
it, however that ends, and lets all its targets go.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from types import TracebackType

PERIOD_S = 0.04
_SIGNAL_CHECK_S = 0.5  # a signal that comes just before select is noticed when select ends


class Slowdown:
    """Decides how much of the time processes run. A context manager; leaving it lets them go."""

    def __init__(self, shares: Mapping[int, float] | None = None) -> None:
        self._first = dict(shares or {})

    def __enter__(self) -> Slowdown:
        self._helper = subprocess.Popen(
            [sys.executable, "-S", "-E", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.set(self._first)
        return self

    def set(self, shares: Mapping[int, float]) -> None:
        """The share of the time, 0 to 1, that each process runs from now on; others run freely."""
        line = " ".join(f"{pid}:{share}" for pid, share in shares.items())
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        self._helper.stdin.write(f"{line}\n".encode())
        self._helper.stdin.flush()
        self._helper.stdout.readline()  # it is so

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


def hold_back() -> None:
    """The helper: follow the lines on stdin until it closes."""
    shares: dict[int, float] = {}
    try:
        while True:
            before, shares = shares, _read()
            _send((pid for pid in {*before, *shares} if shares.get(pid, 1.0) > 0), signal.SIGCONT)
            _send((pid for pid, share in shares.items() if share == 0), signal.SIGSTOP)
            print("ok", flush=True)
            _stop_and_go({pid: share for pid, share in shares.items() if 0 < share < 1})
    except EOFError:
        return
    finally:
        _send(shares, signal.SIGCONT)


def _read() -> dict[int, float]:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    pairs = (word.split(":") for word in line.split())
    return {int(pid): float(share) for pid, share in pairs}


def _stop_and_go(shares: Mapping[int, float]) -> None:
    """Until the next line."""
    began, period = time.monotonic(), 0
    ends = sorted(set(shares.values()))
    while True:
        # Times are counted from the beginning: a helper that wakes late doesn't drift.
        _send(shares, signal.SIGCONT)
        for end in ends:
            if _told_until(began + (period + end) * PERIOD_S):
                return
            _send((pid for pid, share in shares.items() if share == end), signal.SIGSTOP)
        period = max(period + 1, int((time.monotonic() - began) / PERIOD_S))
        if _told_until(began + period * PERIOD_S if shares else None):
            return


def _told_until(deadline: float | None) -> bool:
    """Whether there is a line to read; without a deadline, asked again every now and then."""
    wait_s = _SIGNAL_CHECK_S if deadline is None else deadline - time.monotonic()
    return bool(select.select([sys.stdin], [], [], max(0.0, wait_s))[0])


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds: the targets are let go
    hold_back()
