"""The registry of a cluster: an etcd, asked through its JSON gateway (`etcd_gateway.py`).

A compare-and-swap is one etcd transaction. Where an attempt's answer was lost, the next attempt may
find that the first was carried out: the transaction then fails and shows our own value, which is
how it is told from another's.
"""

from __future__ import annotations

import math
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from manyhands.controller.etcd_gateway import EtcdGateway, EtcdRefusal
from manyhands.controller.registry import Change, Entry, LeaseHandle

_NOT_FOUND = 5  # gRPC's code, of a lease that has ended


class EtcdRegistry:
    """Entries under one prefix of an etcd. See `registry.Registry`."""

    def __init__(self, gateway: EtcdGateway, prefix: str) -> None:
        self._gateway = gateway
        self._prefix = prefix

    def get(self, key: str) -> Entry | None:
        answer, _ = self._gateway.call("/v3/kv/range", {"key": self._name(key)})
        found = self._entries(answer)
        return found[0] if found else None

    def put(
        self,
        key: str,
        value: bytes,
        *,
        expected: int | None = None,
        lease: LeaseHandle | None = None,
        guard: Entry | None = None,
    ) -> int | None:
        request: dict[str, Any] = {"key": self._name(key), "value": _encode(value)}
        if lease is not None:
            request["lease"] = str(lease.number)
        transaction = {
            "compare": self._conditions(key, expected, guard),
            "success": [{"request_put": request}],
            "failure": [{"request_range": {"key": self._name(key)}}],
        }
        try:
            answer, doubtful = self._gateway.call("/v3/kv/txn", transaction)
        except EtcdRefusal as refusal:
            if refusal.code == _NOT_FOUND:
                return None
            raise
        if answer.get("succeeded"):
            return int(answer["header"]["revision"])
        found = self._entries(answer["responses"][0]["response_range"])
        if doubtful and found and found[0].value == value and found[0].revision != expected:
            return found[0].revision
        return None

    def delete(self, key: str, *, expected: int | None = None) -> bool:
        transaction = {
            "compare": self._conditions(key, expected, None),
            "success": [{"request_delete_range": {"key": self._name(key)}}],
        }
        answer, doubtful = self._gateway.call("/v3/kv/txn", transaction)
        if not answer.get("succeeded"):
            return doubtful and self.get(key) is None
        deleted = answer["responses"][0]["response_delete_range"].get("deleted", 0)
        return doubtful or int(deleted) > 0

    def entries(self, prefix: str) -> list[Entry]:
        answer, _ = self._gateway.call("/v3/kv/range", self._range(prefix))
        return sorted(self._entries(answer), key=lambda entry: entry.key)

    def grant(self, ttl_s: float) -> LeaseHandle:
        answer, _ = self._gateway.call("/v3/lease/grant", {"TTL": str(math.ceil(ttl_s))})
        return _EtcdLease(self._gateway, int(answer["ID"]), float(answer["TTL"]))

    def watch(self, prefix: str, *, after: int, timeout_s: float) -> Iterator[Change]:
        deadline = time.monotonic() + timeout_s
        wanted = {**self._range(prefix), "start_revision": str(after + 1)}
        request = {"create_request": wanted}
        for answer in self._gateway.stream("/v3/watch", request, deadline):
            if "compact_revision" in answer:  # what happened is forgotten; what is there is not
                yield from self._present(prefix, after)
                return
            for event in answer.get("events", ()):
                pair = event["kv"]
                gone = event.get("type") == "DELETE"
                value = None if gone else b64decode(pair.get("value", ""))
                yield Change(self._key(pair), value, int(pair["mod_revision"]))

    def close(self) -> None:
        """Nothing is held between two requests."""

    def _present(self, prefix: str, after: int) -> list[Change]:
        newer = [entry for entry in self.entries(prefix) if entry.revision > after]
        newer.sort(key=lambda entry: entry.revision)
        return [Change(entry.key, entry.value, entry.revision) for entry in newer]

    def _conditions(
        self, key: str, expected: int | None, guard: Entry | None
    ) -> list[dict[str, str]]:
        revisions = [] if expected is None else [(key, expected)]
        if guard is not None:
            revisions.append((guard.key, guard.revision))
        return [
            {
                "key": self._name(name),
                "target": "MOD",
                "result": "EQUAL",
                "mod_revision": str(revision),
            }
            for name, revision in revisions
        ]

    def _range(self, prefix: str) -> dict[str, str]:
        first = (self._prefix + prefix).encode()
        last = first[:-1] + bytes([first[-1] + 1])  # never 0xff: keys are UTF-8
        return {"key": _encode(first), "range_end": _encode(last)}

    def _name(self, key: str) -> str:
        return _encode((self._prefix + key).encode())

    def _key(self, pair: dict[str, str]) -> str:
        return b64decode(pair["key"]).decode().removeprefix(self._prefix)

    def _entries(self, answer: dict[str, Any]) -> list[Entry]:
        return [
            Entry(self._key(pair), b64decode(pair.get("value", "")), int(pair["mod_revision"]))
            for pair in answer.get("kvs", ())
        ]


@dataclass(frozen=True, slots=True)
class _EtcdLease:
    _gateway: EtcdGateway
    number: int
    ttl_s: float

    def keep_alive(self) -> bool:
        answer, _ = self._gateway.call("/v3/lease/keepalive", {"ID": str(self.number)})
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    def revoke(self) -> None:
        try:
            self._gateway.call("/v3/lease/revoke", {"ID": str(self.number)})
        except EtcdRefusal as refusal:
            if refusal.code != _NOT_FOUND:
                raise


def _encode(data: bytes) -> str:
    return b64encode(data).decode()
