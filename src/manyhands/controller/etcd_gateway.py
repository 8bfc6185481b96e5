"""Requests to an etcd with several members, over its JSON gateway, by the standard library alone.

The gateway is part of every etcd since 3.4 (`/v3/...`), so there is no client library to install
and none to outlive. Any member answers any request; one that is down, stopped or without a leader
is left for the next. docs/decisions/0011 says why this and not a library.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from typing import Any

from manyhands.errors import RegistryUnavailable

_ATTEMPT_S = 1.0
_IN_ALL_S = 4.0
_PAUSE_S = 0.05
_UNKNOWN, _DEADLINE, _UNAVAILABLE = 2, 4, 14  # gRPC's codes of troubles that pass
_PASSING = (_UNKNOWN, _DEADLINE, _UNAVAILABLE)


class EtcdRefusal(RegistryUnavailable):
    """etcd understood the request and says no; `code` is gRPC's."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class EtcdGateway:
    """Sends requests to whichever member answers. Thread-safe: a connection for each request."""

    def __init__(
        self, endpoints: Sequence[tuple[str, int]], *, context: ssl.SSLContext | None = None
    ) -> None:
        self._endpoints = tuple(endpoints)
        self._context = context
        self._preferred = 0

    def call(self, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """The answer, and whether an earlier attempt may have been carried out as well.

        RegistryUnavailable when no member answers in time, EtcdRefusal when one says no.
        """
        deadline = time.monotonic() + _IN_ALL_S
        doubtful = False
        while True:
            member = self._preferred
            try:
                return self._attempt(member, path, body), doubtful
            except ConnectionRefusedError as error:
                trouble: Exception = error  # it never arrived
            except EtcdRefusal as error:
                if error.code not in _PASSING:
                    raise
                trouble, doubtful = error, True
            except (OSError, http.client.HTTPException, ValueError) as error:
                trouble, doubtful = error, True
            self._leave(member)
            if time.monotonic() + _PAUSE_S > deadline:
                raise RegistryUnavailable(self._silence(trouble)) from trouble
            time.sleep(_PAUSE_S)

    def stream(self, path: str, body: dict[str, Any], deadline: float) -> Iterator[dict[str, Any]]:
        """The answers to one request as they come, until the deadline or the stream breaks."""
        member = self._preferred
        connection = self._connect(member, _ATTEMPT_S)
        try:
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            while (left_s := deadline - time.monotonic()) > 0:
                if connection.sock is not None:
                    connection.sock.settimeout(left_s)
                line = answer.readline()
                if not line:
                    return
                yield _result(json.loads(line))
        except TimeoutError:
            return
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._leave(member)
            raise RegistryUnavailable(self._silence(error)) from error
        finally:
            connection.close()

    def _attempt(self, member: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        connection = self._connect(member, _ATTEMPT_S)
        try:
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            found = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status != 200 or "error" in found:
            raise _refusal(found)
        return dict(found)

    def _connect(self, member: int, timeout_s: float) -> http.client.HTTPConnection:
        host, port = self._endpoints[member]
        if self._context is None:
            connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        else:
            connection = http.client.HTTPSConnection(
                host, port, timeout=timeout_s, context=self._context
            )
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _leave(self, member: int) -> None:
        if self._preferred == member:  # not when another thread has left it already
            self._preferred = (member + 1) % len(self._endpoints)

    def _silence(self, trouble: Exception) -> str:
        members = ", ".join(f"{host}:{port}" for host, port in self._endpoints)
        return f"No etcd member of {members} answers ({trouble or type(trouble).__name__})."


def _result(line: Any) -> dict[str, Any]:
    if "result" not in line:
        raise RegistryUnavailable(f"etcd ended a watch: {_refusal(line)}.")
    return dict(line["result"])


def _refusal(found: Any) -> EtcdRefusal:
    error = found.get("error", found)
    if isinstance(error, dict):  # of a stream
        return EtcdRefusal(str(error.get("message")), int(error.get("grpc_code", _UNKNOWN)))
    return EtcdRefusal(str(error), int(found.get("code", _UNKNOWN)))
