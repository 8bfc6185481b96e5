"""Roles: started with pointers into shared memory, heard, ended."""

from __future__ import annotations

import os
import threading
from multiprocessing.connection import Connection

import pytest
import torch

from manyhands import kernels
from manyhands.errors import ConfigError, WorkerError
from manyhands.launch.local import start_role
from manyhands.launch.role_process import Ready
from manyhands.transport.arena import Arena


class Adder:
    """Adds what it is sent to a shared tensor, and says who it is."""

    def __init__(self, total: torch.Tensor) -> None:
        self.total = total

    def run(self, channel: Connection) -> None:
        channel.send(Ready())
        while (number := channel.recv()) is not None:
            self.total += number
            channel.send((os.getpid(), os.environ.get("MANYHANDS_TEST_PREFIX")))


class Raises:
    def run(self, channel: Connection) -> None:
        raise self.error

    def __init__(self, error: Exception) -> None:
        self.error = error


class FailsAtWork:
    """Raises while a thread of it is in the middle of something, with a native object at hand."""

    def run(self, channel: Connection) -> None:
        rule = kernels.Rule("sgd")
        threading.Thread(target=lambda: (threading.Event().wait(), rule), daemon=True).start()
        raise ValueError("sample 300 is broken")


class Polls:
    """Answers whether something had arrived, before and after it waits."""

    def run(self, channel: Connection) -> None:
        channel.send(channel.poll())
        channel.send(channel.poll(30.0))
        channel.send(channel.recv())


class NeverEnds:
    """Ignores its driver as far as it can: only the channel's end stops it."""

    def run(self, channel: Connection) -> None:
        channel.send(Ready())
        threading.Event().wait()


@pytest.mark.parametrize("prefix", [(), ("env", "MANYHANDS_TEST_PREFIX=set")])
def test_a_role_shares_memory_and_answers_also_under_another_command(prefix):
    arena = Arena.with_room_for([torch.zeros(3)])
    total = arena.place(torch.zeros(3))
    with start_role(Adder(total), name="adder", arenas=[arena], prefix=prefix) as role:
        assert role.receive() == Ready()
        assert role.poll() is None
        role.send(2.0)
        assert role.receive() == (role.pid, "set" if prefix else None)
        assert total.tolist() == [2.0, 2.0, 2.0]
        role.send(None)
        assert role.receive() is None
        assert role.ending() == "ended with code 0"
    assert role.poll() == "ended with code 0"
    arena.close()


def test_an_error_of_ours_arrives_as_itself_and_anothers_with_its_traceback():
    with (
        start_role(Raises(ConfigError("change this")), name="role 3") as role,
        pytest.raises(ConfigError, match="change this"),
    ):
        role.receive()
    with (
        start_role(Raises(KeyError("x")), name="role 3") as role,
        pytest.raises(WorkerError, match="Role 3 failed: KeyError") as caught,
    ):
        role.receive()
    assert "in run" in str(caught.value.__cause__)


def test_a_role_that_fails_says_so_to_its_driver_and_to_nobody_else(capfd):
    with start_role(FailsAtWork(), name="role 3") as role:
        with pytest.raises(WorkerError, match="sample 300 is broken"):
            role.receive()
        assert role.ending() == "ended with code 1"
    assert capfd.readouterr() == ("", "")


def test_a_role_can_look_for_messages_without_taking_them():
    with start_role(Polls(), name="poller") as role:
        assert role.receive() is False
        role.send("hello")
        assert role.receive() is True
        assert role.receive() == "hello"


def test_closing_ends_a_role_that_would_never_end_and_may_be_done_twice():
    role = start_role(NeverEnds(), name="stubborn")
    assert role.receive() == Ready()
    role.close()
    role.close()
    assert role.poll() == "ended with code 0"


def test_a_killed_role_is_noticed_and_named():
    with start_role(NeverEnds(), name="victim") as role:
        assert role.receive() == Ready()
        role.process.kill()
        assert role.receive() is None
        assert role.ending() == "killed by SIGKILL"


def test_a_command_that_does_not_exist_is_answered_in_a_sentence():
    with pytest.raises(ConfigError, match=r"of netns could not be started with 'no-such --x'"):
        start_role(NeverEnds(), name="netns", prefix=("no-such", "--x"))


def test_a_task_that_holds_a_lock_is_refused():
    task = Raises(ValueError())
    task.lock = threading.Lock()
    with pytest.raises(ConfigError, match="can't be sent to a worker process"):
        start_role(task, name="locked")
