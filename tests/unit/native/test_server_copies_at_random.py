"""Servers die, are cut off and join at random while clients push: every push counts exactly once.

The test plays the controller of docs/protocol.md: it alone changes placements, promotes only
mirrors, and makes a mirror only of a copy that is in step. Pushes are ones: sums are exact.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from copies import Copies, copies
from raw_client import Kind, RawClient

SERVERS, CLIENTS = 4, 3
BUCKETS = {0: [0], 1: [1, 2]}  # chunks 1 and 2 are a span


@dataclass
class Place:
    primary: int
    lease: int
    mirrors: list[int]
    joining: dict[int, int] = field(default_factory=dict)  # server: since


@dataclass
class Push:
    kind: Kind
    chunk: int
    sequence: int

    @property
    def touches(self) -> list[int]:
        return [1, 2] if self.kind is Kind.FACTORS else [self.chunk]


class Client:
    """One push under way at a time, sent again until it is acknowledged."""

    def __init__(self, story: Story, number: int) -> None:
        self.story, self.number = story, number
        self.sequence = 0
        self.push: Push | None = None
        self.link: RawClient | None = None
        self.leads_to = -1

    def begin(self) -> None:
        random = self.story.random
        kind = Kind.FACTORS if random.random() < 0.3 else Kind.DELTA
        chunk = 1 if kind is Kind.FACTORS else int(random.integers(3))
        self.sequence += 1
        self.push = Push(kind, chunk, self.sequence)
        self.send()

    def send(self) -> None:
        assert self.push is not None
        place = self.story.places[0 if self.push.chunk == 0 else 1]
        if self.link is None or self.leads_to != place.primary:
            self.leave()
            self.leads_to = place.primary
            self.link = self.story.c.connect(place.primary, self.number)
        lease = place.lease if self.story.random.random() < 0.5 else 0
        factors = self.push.kind is Kind.FACTORS
        try:
            self.link.send(
                self.push.kind, self.story.payloads[self.push.kind], chunk=self.push.chunk,
                count=int(factors), sequence=self.push.sequence, lease=lease,
            )  # fmt: skip
        except OSError:
            self.leave()

    def leave(self) -> None:
        if self.link is not None:
            self.link.close()
        self.link = None

    def look(self) -> None:
        """Take an answer if there is one; whatever it is but yes, try again."""
        if self.push is None:
            return self.begin()
        if self.link is None:
            return self.send()
        self.link.sock.settimeout(0)
        try:
            self.link.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            # A client that learns of a placement moves on from a server that does not answer.
            if self.leads_to != self.story.places[0 if self.push.chunk == 0 else 1].primary:
                self.send()
            return None
        except OSError:
            return self.leave()
        self.link.sock.settimeout(20)
        try:
            reply = self.link.receive()
        except ConnectionError:
            return self.leave()
        if reply.sequence != self.push.sequence or reply.kind is not Kind.ACK:
            return self.send()
        for chunk in self.push.touches:
            self.story.acknowledged[chunk] += 1
        self.push = None
        return None


class Story:
    def __init__(self, c: Copies, seed: int, width: int) -> None:
        self.c, self.width = c, width
        self.payloads = {
            Kind.DELTA: np.ones(5 * width, np.float32).tobytes(),
            Kind.FACTORS: np.ones(width + 10, np.float32).tobytes(),
        }
        self.random = np.random.default_rng(seed)
        self.version = 1
        self.places = {
            0: Place(0, 1, [1, 2]),
            1: Place(1, 1, [2, 3]),
        }
        self.acknowledged = np.zeros(3, int)
        self.muted: set[tuple[int, int]] = set()
        self.told: dict[tuple[int, int, int], set[int]] = {}  # chunks in step, by joining copy
        self.clients = [Client(self, number) for number in range(1, CLIENTS + 1)]

    def begin(self) -> None:
        self.c.add(0, 5, self.width)
        for chunk in (1, 2):
            self.c.add(chunk, 5, self.width, parameter=1, first_row=5 * (chunk - 1))
        self.c.start()
        for bucket in BUCKETS:
            self.publish(bucket)
        self.connect_all()

    # --- the controller

    def publish(self, bucket: int, but: int = -1) -> None:
        """Tell every server, but one that is paused."""
        place = self.places[bucket]
        self.version += 1
        for server, native in enumerate(self.c.servers):
            if server == but:
                continue
            if server == place.primary:
                native.hold(
                    BUCKETS[bucket], role="primary", lease=place.lease, mirrors=place.mirrors,
                    joining=list(place.joining.items()),
                )  # fmt: skip
            else:
                role = "mirror" if server in (*place.mirrors, *place.joining) else "none"
                native.hold(BUCKETS[bucket], role=role, lease=place.lease)

    def copies_of(self, bucket: int) -> list[int]:
        return [*self.places[bucket].mirrors, *self.places[bucket].joining]

    def connect_all(self) -> None:
        for bucket, place in self.places.items():
            self.c.join(place.primary, *self.copies_of(bucket))

    def take_events(self) -> None:
        for server, native in enumerate(self.c.servers):
            for name, first, second, third in native.wait_events(0):
                if name == "in_step":
                    self.in_step(server, peer=first, chunk=second, since=third)
                elif name == "peer_lost" and self.random.random() < 0.7:
                    self.c.join(server, first)

    def in_step(self, server: int, peer: int, chunk: int, since: int) -> None:
        bucket = 0 if chunk == 0 else 1
        place = self.places[bucket]
        if place.primary != server or place.joining.get(peer) != since:
            return
        told = self.told.setdefault((bucket, peer, since), set())
        told.add(chunk)
        if told == set(BUCKETS[bucket]):
            del place.joining[peer]
            place.mirrors.append(peer)
            self.publish(bucket)

    def lose(self, bucket: int, server: int, but: int = -1) -> bool:
        """The bucket goes on without a server, if it can."""
        place = self.places[bucket]
        if place.primary == server:
            if not place.mirrors:
                return False
            place.primary = place.mirrors.pop(int(self.random.integers(len(place.mirrors))))
            place.lease += 1
            self.version += 1
            place.joining = {copy: self.version for copy in place.joining if copy != server}
        elif server in place.mirrors:
            place.mirrors.remove(server)
        else:
            place.joining.pop(server, None)
        self.publish(bucket, but)
        return True

    # --- what happens

    def kill(self) -> None:
        server = int(self.random.integers(SERVERS))
        if any(p.primary == server and not p.mirrors for p in self.places.values()):
            return
        for pair in [pair for pair in self.muted if server in pair]:
            self.heal(pair)
        self.c.servers[server].stop()
        for bucket in BUCKETS:
            if server in (self.places[bucket].primary, *self.copies_of(bucket)):
                assert self.lose(bucket, server, but=server)
        self.c.restart(server)
        for other in range(SERVERS):
            if other != server:
                self.c.servers[other].drop_peer(server)
        for bucket in BUCKETS:
            self.publish(bucket)
        if self.random.random() < 0.7:
            self.connect_all()

    def depose(self) -> None:
        """A primary is replaced, and hears of it from the others at best."""
        bucket = int(self.random.integers(2))
        old = self.places[bucket].primary
        if self.lose(bucket, old, but=old) and self.random.random() < 0.7:
            self.connect_all()

    def remove(self) -> None:
        bucket = int(self.random.integers(2))
        copies = self.copies_of(bucket)
        if copies:
            self.lose(bucket, int(self.random.choice(copies)))

    def add(self) -> None:
        bucket = int(self.random.integers(2))
        place = self.places[bucket]
        free = [s for s in range(SERVERS) if s not in (place.primary, *self.copies_of(bucket))]
        if free:
            place.joining[int(self.random.choice(free))] = self.version + 1
            self.publish(bucket)
            self.connect_all()

    def cut(self) -> None:
        first, second = (int(s) for s in self.random.choice(SERVERS, 2, replace=False))
        self.muted.add((first, second))
        self.c.servers[first].mute_peer(second, True)
        self.c.servers[second].mute_peer(first, True)

    def heal(self, pair: tuple[int, int] | None = None) -> None:
        if pair is None and self.muted:
            pair = sorted(self.muted)[int(self.random.integers(len(self.muted)))]
        if pair is not None:
            first, second = pair
            self.muted.discard(pair)
            self.c.servers[first].mute_peer(second, False)
            self.c.servers[second].mute_peer(first, False)

    def break_connection(self) -> None:
        first, second = (int(s) for s in self.random.choice(SERVERS, 2, replace=False))
        self.c.servers[first].drop_peer(second)
        if self.random.random() < 0.7:
            self.connect_all()

    def push_for(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not until():
            for client in self.clients:
                client.look()
            self.take_events()

    def run(self, steps: int) -> None:
        faults = [
            self.kill, self.depose, self.remove, self.add, self.add, self.cut, self.heal, self.heal,
            self.break_connection, self.connect_all,
        ]  # fmt: skip
        for _ in range(steps):
            faults[int(self.random.integers(len(faults)))]()
            self.push_for(float(self.random.choice([0.0, 0.002, 0.02])))

    def settle(self) -> None:
        """Everything heals; who waits is answered; nobody begins anything new."""
        for pair in list(self.muted):
            self.heal(pair)
        for bucket in BUCKETS:
            self.publish(bucket)
        self.connect_all()
        for client in self.clients:
            deadline = time.monotonic() + 60
            while client.push is not None:
                assert time.monotonic() < deadline, f"{client.push} is not acknowledged"
                client.look()
                self.take_events()


@pytest.mark.parametrize("width", [4, 5000])  # payloads are sent, or shown in shared memory
@pytest.mark.parametrize("seed", range(5))
def test_every_push_counts_once(seed: int, width: int) -> None:
    with copies(SERVERS) as c:
        story = Story(c, seed, width)
        story.begin()
        story.run(150)
        story.settle()
        story.push_for(60, until=lambda: story.acknowledged.sum() > 100)
        story.settle()
        assert story.acknowledged.sum() > 100
        for bucket, chunks in BUCKETS.items():
            place = story.places[bucket]
            for chunk in chunks:
                for server in (place.primary, *place.mirrors):
                    found = c.snapshot(server, chunk)
                    assert found is not None
                    assert np.unique(-found.arrays).tolist() == [story.acknowledged[chunk]]
