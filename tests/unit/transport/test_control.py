"""The control socket: requests of the run's user are answered, mistakes in a sentence."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from manyhands.errors import ConfigError, ServerUnavailable
from manyhands.transport import control, unix_socket
from manyhands.transport.control import ControlServer, ask


def handle(request: dict[str, Any]) -> Any:
    if request["command"] == "add":
        return {"sum": request["a"] + request["b"]}
    if request["command"] == "fail":
        raise KeyError("a bug")
    raise ConfigError(f"There is no command {request['command']!r}.")


@pytest.fixture
def run_dir(tmp_path: Path):
    with ControlServer(tmp_path, handle):
        yield tmp_path


def raw(run_dir: Path, said: bytes) -> bytes:
    with unix_socket.connect_unix((run_dir / "control").read_text(), 10.0) as sock:
        sock.sendall(said)
        return sock.recv(65536)


def test_requests_are_answered_one_after_another(run_dir):
    for number in range(5):
        assert ask(run_dir, {"command": "add", "a": number, "b": 2}) == {"sum": number + 2}


def test_the_runs_sentence_reaches_the_asker(run_dir):
    with pytest.raises(ConfigError, match="There is no command 'fly'"):
        ask(run_dir, {"command": "fly"})


def test_a_bug_ends_neither_the_server_nor_the_asker_without_a_word(run_dir, caplog):
    with caplog.at_level(logging.ERROR), pytest.raises(ConfigError, match="KeyError"):
        ask(run_dir, {"command": "fail"})
    assert ask(run_dir, {"command": "add", "a": 1, "b": 2}) == {"sum": 3}


@pytest.mark.parametrize(
    "said", [b"hello\n", b"[1]\n", b"[" * 50_000 + b"\n", b"\xff\n", b"x" * 100_000]
)
def test_garbage_is_answered_and_the_server_goes_on(run_dir, said, caplog):
    with caplog.at_level(logging.WARNING):
        assert b"error" in raw(run_dir, said)
    assert ask(run_dir, {"command": "add", "a": 1, "b": 2}) == {"sum": 3}


def test_a_silent_asker_is_dropped(run_dir, monkeypatch):
    monkeypatch.setattr(control, "_DEADLINE_S", 0.2)
    with unix_socket.connect_unix((run_dir / "control").read_text(), 10.0) as silent:
        assert silent.recv(1) == b""
        assert ask(run_dir, {"command": "add", "a": 1, "b": 2}) == {"sum": 3}


def test_another_user_is_turned_away(run_dir, monkeypatch, caplog):
    monkeypatch.setattr(unix_socket.os, "geteuid", lambda: 12345)
    with socket.socket(socket.AF_UNIX) as sock, caplog.at_level(logging.WARNING):
        sock.connect("\0" + (run_dir / "control").read_text())
        assert b"belongs to user" in sock.recv(1000)


def test_the_file_is_the_users_and_goes_with_the_run(tmp_path):
    server = ControlServer(tmp_path, handle)
    server.start()
    assert os.stat(tmp_path / "control").st_mode & 0o777 == 0o600
    server.close()
    server.close()
    assert os.listdir(tmp_path) == []
    with pytest.raises(ServerUnavailable, match="No run is going on"):
        ask(tmp_path, {})


def test_what_a_killed_run_left_is_recognised_and_replaced(tmp_path):
    (tmp_path / "control").write_text("manyhands-gone")
    with pytest.raises(ServerUnavailable, match="No run is going on"):
        ask(tmp_path, {})
    with ControlServer(tmp_path, handle):
        assert ask(tmp_path, {"command": "add", "a": 1, "b": 2}) == {"sum": 3}
