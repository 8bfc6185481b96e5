"""Waiting on conditions, and looking at real processes."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def wait_until(condition: Callable[[], bool], *, what: str, deadline_s: float = 60.0) -> None:
    """Wait on a condition with a deadline, never on a sleep alone."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        time.sleep(0.02)


def workers_of(pid: int) -> list[psutil.Process]:
    """The worker processes that a driver has started."""
    try:
        children = psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return []
    return [child for child in children if not _is_another_tests(child)]


def _is_another_tests(process: psutil.Process) -> bool:
    """Whether it is a program that tests share for a while: an etcd, alive or just killed."""
    try:
        return process.name() == "etcd"
    except psutil.NoSuchProcess:
        return True
