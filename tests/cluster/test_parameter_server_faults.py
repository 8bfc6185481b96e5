"""Deaths, cut cables and back-pressure: no push is applied twice or in part, memory is bounded."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import psutil
import pytest

from manyhands.errors import ServerUnavailable
from manyhands.launch.local import start_role
from manyhands.messages import Header, Hello, Kind
from manyhands.parameter_server.client.parameter_client import ParameterClient
from manyhands.parameter_server.shard_map import ParameterSpec, ShardMap
from manyhands.transport.connection import greet
from manyhands.transport.endpoint import Endpoint
from tests.cluster.conftest import wait_until
from tests.cluster.servers import fleet, shared_arrays

LARGE = (ParameterSpec("large", (1500, 1024)), ParameterSpec("small", (5,)))


class CuttingProxy:
    """A cable between clients and a server that breaks after some bytes, again and again."""

    def __init__(self, target: Endpoint, cuts: int, most_bytes: int) -> None:
        self._target = target
        self._door = socket.create_server(("127.0.0.1", 0))
        self._random = random.Random(7)
        self._most_bytes = most_bytes
        self.cuts_left = cuts
        self.endpoint = Endpoint("127.0.0.1", self._door.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._pairs: list[threading.Thread] = []

    def __enter__(self) -> CuttingProxy:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for thread in (self._thread, *self._pairs):
            thread.join(20)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            pair = threading.Thread(target=self._connect, args=(near,), daemon=True)
            self._pairs.append(pair)
            pair.start()

    def _connect(self, near: socket.socket) -> None:
        with near, socket.create_connection((self._target.host, self._target.port)) as far:
            back = threading.Thread(target=self._pump, args=(far, near), daemon=True)
            back.start()
            self._pump(near, far)
            back.join()

    def _pump(self, source: socket.socket, drain: socket.socket) -> None:
        left = self._random.randrange(2000, self._most_bytes)
        try:
            while data := source.recv(65536):
                if self.cuts_left > 0 and len(data) >= left:
                    self.cuts_left -= 1
                    drain.sendall(data[:left])
                    break
                left -= len(data)
                drain.sendall(data)
        except OSError:
            pass
        for end in (source, drain):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("refuse_nonfinite", [True, False])
def test_pushes_over_a_cable_that_breaks_are_applied_exactly_once(refuse_nonfinite):
    with (
        fleet(parameters=LARGE, refuse_nonfinite=refuse_nonfinite) as running,
        CuttingProxy(running.endpoints[0], cuts=12, most_bytes=30_000_000) as proxy,
        running.client(endpoints=[proxy.endpoint]) as client,
    ):
        times = 0
        while proxy.cuts_left > 0 or times < 12:
            values = running.flat(1)
            if times % 3:
                client.servers[0].push(values, rate=1.0, steps=1)
            else:
                client.servers[0].push_pull(values, running.flat(), rate=1.0, steps=1)
            times += 1
            assert times < 500
        np.testing.assert_array_equal(running.weights(), np.where(running.used(), -times, 0))
        assert client.counters.reconnects > 0
        report = running.report()
        assert report.updates == times * len(running.shards.chunks)
        running.wait_for(lambda r: r.waiting_bytes == 0, what="half payloads are given up")


@dataclass
class PushForever:
    """A role that pushes ones until it is killed; tells how often it was acknowledged."""

    shards: ShardMap
    endpoints: list[Endpoint]
    token: str
    same_machine: bool

    def run(self, channel: Connection) -> None:
        with shared_arrays(self.shards, 1) as (own, (values,)):
            values[:] = 1
            client = ParameterClient(
                self.shards,
                self.endpoints,
                token=self.token,
                same_machine=self.same_machine,
                own=own,
            )
            with client:
                acknowledged = 0
                while True:
                    client.servers[0].push(values, rate=1.0, steps=1)
                    acknowledged += 1
                    channel.send(acknowledged)


@pytest.mark.parametrize("same_machine", [False, True])
def test_a_client_killed_while_it_pushes_harms_nobody(same_machine):
    with fleet(parameters=LARGE) as running, running.client() as survivor:
        acknowledged = 0
        for _ in range(2):
            task = PushForever(running.shards, running.endpoints, running.token, same_machine)
            with start_role(task, name="pusher") as pusher:
                count = 0
                while count < 5:
                    count = pusher.receive()
                pusher.kill()
                while (more := pusher.receive()) is not None:
                    count = more
            acknowledged += count
            survivor.servers[0].push(running.flat(1), rate=1.0, steps=1)
            acknowledged += 1
        running.wait_for(lambda r: r.connections == 1, what="the dead are forgotten")
        running.wait_for(lambda r: r.waiting_bytes == 0, what="half payloads are given up")
        weights = running.weights()
        for chunk in running.shards.chunks:
            applied = -weights[chunk.start : chunk.start + chunk.floats]
            assert (applied == applied[0]).all()  # a push is applied whole or not at all
            assert acknowledged <= applied[0] <= acknowledged + 2 * 2  # and what was under way


def test_a_dead_server_is_named_after_the_time_allowed():
    with fleet(servers=2) as running, running.client(retry_s=0.5) as client:
        running.roles[1].kill()
        client.servers[0].push(running.flat(1), rate=1.0, steps=1)  # the other one serves
        address = str(running.endpoints[1])
        with pytest.raises(ServerUnavailable, match=address):
            client.servers[1].push(running.flat(1), rate=1.0, steps=1)
        with pytest.raises(ServerUnavailable, match=address):
            running.client(retry_s=0.2).start()


def test_a_server_that_was_asleep_applies_what_it_was_sent_again_once():
    with fleet(parameters=LARGE) as running, running.client(timeout_s=0.5) as client:
        server = psutil.Process(running.roles[0].pid)
        server.suspend()
        pushing = threading.Thread(
            target=lambda: client.servers[0].push(running.flat(1), rate=1.0, steps=1)
        )
        pushing.start()
        try:
            wait_until(lambda: client.counters.reconnects > 0, what="the client gives up once")
        finally:
            server.resume()
        pushing.join(60)
        np.testing.assert_array_equal(running.weights(), np.where(running.used(), -1, 0))


def test_interrupting_ends_a_call_that_waits():
    with fleet() as running, running.client(retry_s=600.0) as client:
        running.roles[0].kill()
        caught: list[BaseException] = []

        def push() -> None:
            try:
                client.servers[0].push(running.flat(1), rate=1.0, steps=1)
            except ServerUnavailable as error:
                caught.append(error)

        thread = threading.Thread(target=push)
        thread.start()
        wait_until(lambda: client.counters.reconnects > 0, what="the client tries again")
        client.interrupt()
        thread.join(30)
        assert len(caught) == 1


def test_a_flood_of_pushes_keeps_memory_bounded_and_shows_on_both_sides():
    parameters = [ParameterSpec(f"p{n}", (256, 1024)) for n in range(32)]  # 32 chunks of 1 MB
    with fleet(parameters=parameters) as running:
        before = running.report().resident_bytes
        clients = [running.client(window=64) for _ in range(4)]
        stop = threading.Event()
        peaks: list[int] = []

        def flood(client: ParameterClient) -> None:
            with client:
                while not stop.is_set():
                    client.servers[0].push(running.flat(1), rate=1e-9, steps=1)

        threads = [threading.Thread(target=flood, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        try:
            while len(peaks) < 8:
                report = running.report()
                peaks.append(report.resident_bytes)
                assert report.waiting_bytes < 64 << 20
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        report = running.report()
        model = 4 * running.shards.floats
        assert max(peaks) - before < model + (48 << 20)  # the weights are touched meanwhile
        assert report.busy_s > 0
        assert all(client.counters.waited_s > 0 for client in clients)


def test_a_client_that_does_not_read_its_answers_is_no_longer_read_from():
    with fleet(parameters=LARGE) as running, running.client() as other:
        hello = Hello(token=running.token, client=99, lane=0)
        greeting = greet(running.endpoints[0], hello)
        with socket.socket(fileno=greeting.fd) as deaf:
            pulls = Header(kind=Kind.PULL, client=99, chunk=0).pack() * 400_000
            deaf.settimeout(1.0)
            before = running.report().resident_bytes
            with pytest.raises(TimeoutError):  # 0.4 TB of answers were asked for
                deaf.sendall(pulls)
            other.servers[0].push(running.flat(1), rate=1.0, steps=1)
            running.wait_for(lambda r: r.blocked_replies > 0, what="an answer is not taken")
            assert running.report().resident_bytes - before < 64 << 20
        running.wait_for(lambda r: r.connections == 1, what="the deaf one is gone")


@pytest.mark.parametrize("way", ["tcp", "same machine", "tls"])
def test_clients_that_come_and_go_leave_nothing_behind(way):
    with fleet(encrypted=way == "tls") as running:
        server, ours = psutil.Process(running.roles[0].pid), psutil.Process()

        def come_and_go(times: int) -> None:
            for _ in range(times):
                with shared_arrays(running.shards, 1) as (own, (values,)):
                    options = {"same_machine": True, "own": own} if way == "same machine" else {}
                    with running.client(**options) as client:
                        client.servers[0].push(values, rate=1.0, steps=1)
            running.wait_for(lambda r: r.connections == 0, what="all have left")
            wait_until(lambda: threading.active_count() <= threads, what="our threads have ended")

        def open_things(process: psutil.Process) -> tuple[int, int]:
            return process.num_fds(), len(process.memory_maps(grouped=False))

        threads = threading.active_count()
        come_and_go(3)
        before = [open_things(server), open_things(ours)]
        come_and_go(30)

        def left_behind() -> bool:
            after = [open_things(server), open_things(ours)]
            return any(
                more[0] > once[0] or more[1] > once[1] + 15  # an allocator's regions come and go
                for once, more in zip(before, after, strict=True)
            )

        wait_until(lambda: not left_behind(), what="descriptors and mappings are given back")


DRIVER = """
from tests.cluster.servers import fleet
import time
with fleet(servers=2) as running:
    print(*(role.pid for role in running.roles), flush=True)
    time.sleep(600)
"""


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_servers_end_with_a_driver_that_is_killed():
    command = [sys.executable, "-c", DRIVER]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as driver:
        try:
            assert driver.stdout is not None
            servers = [psutil.Process(int(pid)) for pid in driver.stdout.readline().split()]
            assert len(servers) == 2
        finally:
            driver.kill()
    wait_until(lambda: all(map(has_ended, servers)), what="the servers end too")
