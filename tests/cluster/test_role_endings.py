"""However a driver ends, its roles end: also when it is killed, forked or a role itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from multiprocessing.connection import Connection

import psutil
import pytest

from manyhands.launch.local import start_role
from tests.cluster.conftest import wait_until

# Busy, blocked, one that starts a role itself, a server; and a fork that keeps channels open.
DRIVER = """
    import os, sys, threading, time
    from manyhands.launch.local import start_role
    from manyhands.messages import Hello, Welcome
    from manyhands.transport.certificates import RunCertificates
    from manyhands.transport.connection import greet
    from manyhands.transport.listener import listen

    class Busy:
        def run(self, channel):
            channel.send([os.getpid()])
            while True:
                sum(range(100_000))

    class Blocked:
        def run(self, channel):
            channel.send([os.getpid()])
            threading.Event().wait()

    class Parent:
        def run(self, channel):
            child = start_role(Blocked(), name="child")
            channel.send([os.getpid(), *child.receive()])
            threading.Event().wait()

    class Server:  # open doors, a client that stays, a tunnel between them
        def run(self, channel):
            mine = RunCertificates.make()
            with listen("127.0.0.1", token="ab", credentials=mine.server, tls=True) as listener:
                hello = Hello(token="ab", client=1, lane=0)
                client = threading.Thread(
                    target=lambda: greet(listener.endpoint, hello, credentials=mine.client))
                client.start()
                for arrival in listener.arrivals():
                    arrival.welcome(Welcome(lanes=1, map_version=1))
                    client.join()
                    channel.send([os.getpid()])

    roles = [start_role(t(), name="role") for t in (Busy, Blocked, Parent, Server)]
    pids = [pid for role in roles for pid in role.receive()]
    if "fork" in sys.argv and os.fork() == 0:
        sys.stdout.close()
        threading.Event().wait(60)
        os._exit(0)
    print(*pids, flush=True)
    threading.Event().wait()
"""


def gone(pids: list[int]) -> bool:
    return not any(_alive(pid) for pid in pids)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("how", "forked"),
    [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGTERM, False)],
)
def test_roles_and_their_roles_end_with_a_driver_that_is_killed(how, forked, tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    with subprocess.Popen(
        [sys.executable, str(script), *(["fork"] if forked else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as driver:
        try:
            pids = [int(pid) for pid in driver.stdout.readline().split()]
            assert len(pids) == 5
            os.kill(driver.pid, how)
            driver.wait(30)
            wait_until(lambda: gone(pids), what="roles ended with their driver")
        finally:
            os.killpg(driver.pid, signal.SIGKILL) if _group_alive(driver.pid) else None


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


class Names:
    """Says which network interfaces it sees."""

    def run(self, channel: Connection) -> None:
        channel.send(sorted(psutil.net_if_addrs()))
        channel.recv()


def test_a_role_runs_in_a_network_namespace_of_its_own():
    name = f"mh-test-{os.getpid()}"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    except FileNotFoundError:
        made = False
    if not made:
        pytest.skip("network namespaces can't be made here")
    try:
        with start_role(Names(), name="far", prefix=("ip", "netns", "exec", name)) as role:
            assert role.receive() in ([], ["lo"])
            assert role.process.poll() is None
        assert not psutil.pid_exists(role.pid)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)
