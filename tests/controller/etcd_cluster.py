"""A real etcd of three members on loopback, whose members can be killed, paused and started."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.cluster.conftest import wait_until

MEMBERS = 3


class EtcdCluster:
    """Three processes and their data, gone with the test."""

    def __init__(self, directory: Path, *, certificate: Path | None = None) -> None:
        self._directory = directory
        self._certificate = certificate  # its own authority; its key lies beside it
        ports = _free_ports(2 * MEMBERS)
        self.client_ports, self._peer_ports = ports[:MEMBERS], ports[MEMBERS:]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * MEMBERS
        self._logs = [(directory / f"etcd{n}.log").open("wb") for n in range(MEMBERS)]

    def start(self) -> None:
        for number in range(MEMBERS):
            self.start_member(number)
        if self._certificate is None:
            wait_until(lambda: self.leader() is not None, what="etcd has a leader")

    def start_member(self, number: int) -> None:
        """Start a member, or start it again with what it had."""
        peers = [f"http://127.0.0.1:{port}" for port in self._peer_ports]
        scheme = "http" if self._certificate is None else "https"
        client = f"{scheme}://127.0.0.1:{self.client_ports[number]}"
        command = {
            "name": f"m{number}",
            "data-dir": str(self._directory / f"m{number}"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peers[number],
            "initial-advertise-peer-urls": peers[number],
            "initial-cluster": ",".join(f"m{n}={peer}" for n, peer in enumerate(peers)),
            "initial-cluster-token": self._directory.name,
            "unsafe-no-fsync": "",
        }
        if self._certificate is not None:
            command |= {
                "cert-file": str(self._certificate),
                "trusted-ca-file": str(self._certificate),
                "key-file": str(self._certificate.with_suffix(".key")),
                "client-cert-auth": "",
            }
        self.processes[number] = subprocess.Popen(
            [
                "etcd",
                *(f"--{name}={value}" if value else f"--{name}" for name, value in command.items()),
            ],
            stdout=self._logs[number],
            stderr=subprocess.STDOUT,
        )

    def address(self, name: str, *, scheme: str = "etcd") -> str:
        """The registry of this name, as a controller is told it."""
        members = ",".join(f"127.0.0.1:{port}" for port in self.client_ports)
        return f"{scheme}://{members}/{name}"

    def leader(self) -> int | None:
        """The member that leads, by the word of one that runs."""
        for number, process in enumerate(self.processes):
            status = _status(self.client_ports[number]) if process is not None else None
            if status is not None and status.get("leader") == status["header"]["member_id"]:
                return number
        return None

    def kill(self, number: int) -> None:
        process = self.processes[number]
        assert process is not None
        self.processes[number] = None
        process.kill()
        process.wait()

    def pause(self, number: int, on: bool) -> None:
        process = self.processes[number]
        assert process is not None
        process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def close(self) -> None:
        for number, process in enumerate(self.processes):
            if process is not None:
                self.kill(number)
        for log in self._logs:
            log.close()


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has, from below those that the system gives to whoever asks for any."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(10_000, 30_000), 1000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            break
    return found


def _status(port: int) -> dict | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("POST", "/v3/maintenance/status", "{}")
        found = json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return found if "header" in found else None


def etcd_cluster(directory: Path, *, certificate: Path | None = None) -> EtcdCluster:
    """A cluster that has started; the test is skipped where there is no etcd."""
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    cluster = EtcdCluster(directory, certificate=certificate)
    try:
        cluster.start()
    except BaseException:
        cluster.close()
        raise
    return cluster
