"""Connections between servers: one for each wanted lane, mended when lost, not when dropped."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from manyhands.errors import ProtocolError
from manyhands.messages import Hello, Refusal, Welcome
from manyhands.parameter_server.peers import PeerDialling, Peers
from manyhands.parameter_server.placement import Member
from manyhands.transport.endpoint import Endpoint
from manyhands.transport.listener import Arrival, listen
from tests.unit.transport.conftest import TOKEN, wait_until

DIALLING = PeerDialling(server=0, token=TOKEN, map_version=4, bind_host="127.0.0.3")
NOBODY = Endpoint("127.0.0.1", 1)


class Lanes:
    """Keeps what it adopts."""

    def __init__(self) -> None:
        self.adopted: list[tuple[int, int]] = []  # peer, lane

    def adopt_peer(self, fd: int, *, lane: int, peer: int) -> None:
        os.close(fd)
        self.adopted.append((peer, lane))


class Other:
    """Another server's door."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.hellos: list[Hello] = []
        self.addresses: list[str] = []
        self.map_version = 4
        self.may_welcome = threading.Event()
        self.may_welcome.set()

    @contextmanager
    def listening(self, server: int) -> Iterator[Member]:
        with listen("127.0.0.1", token=TOKEN) as listener:

            def serve() -> None:
                for arrival in listener.arrivals():
                    self._admit(arrival)

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            yield Member(server, self.incarnation, NOBODY, listener.endpoint, "here")
        thread.join(20)

    def _admit(self, arrival: Arrival) -> None:
        self.hellos.append(arrival.hello)
        self.addresses.append(arrival.peer)
        assert self.may_welcome.wait(20)
        if arrival.hello.target == self.incarnation:
            os.close(arrival.welcome(Welcome(lanes=2, map_version=self.map_version)))
        else:
            arrival.refuse(Refusal.NOT_ALLOWED, "That one is gone.")


@contextmanager
def peers() -> Iterator[tuple[Peers, Lanes]]:
    lanes = Lanes()
    dialling = Peers(lanes, DIALLING)
    try:
        yield dialling, lanes
    finally:
        dialling.close()


def test_every_wanted_lane_is_dialled_once_from_our_address():
    other = Other("a")
    with other.listening(1) as member, peers() as (ours, lanes):
        ours.want({1: (member, frozenset({0, 1}))})
        wait_until(lambda: len(lanes.adopted) == 2, what="both lanes")
        ours.want({1: (member, frozenset({0, 1}))})
        assert sorted(lanes.adopted) == [(1, 0), (1, 1)]
        assert {hello.peer for hello in other.hellos} == {0}
        assert all(address.startswith("127.0.0.3:") for address in other.addresses)


def test_a_lost_connection_is_dialled_again_and_others_stay():
    with Other("a").listening(1) as member, peers() as (ours, lanes):
        ours.want({1: (member, frozenset({0, 1}))})
        wait_until(lambda: len(lanes.adopted) == 2, what="both lanes")
        ours.lost(1, 1)
        ours.lost(7, 0)  # of somebody we no longer know
        wait_until(lambda: len(lanes.adopted) == 3, what="the lane again")
        assert lanes.adopted[2] == (1, 1)


def test_a_peer_that_is_not_there_yet_is_reached_when_it_comes():
    other = Other("a")
    with other.listening(1) as member:
        gone = member
    with peers() as (ours, lanes):
        ours.want({1: (gone, frozenset({0}))})
        with other.listening(1) as member:
            ours.want({1: (replace(member, incarnation="b"), frozenset({0}))})
            wait_until(lambda: len(other.hellos) >= 2, what="refused, and tried again")
            assert lanes.adopted == []
            ours.want({1: (member, frozenset({0}))})
            wait_until(lambda: lanes.adopted == [(1, 0)], what="the lane")


def test_nobody_is_adopted_after_a_drop_or_while_cut_off():
    other = Other("a")
    with other.listening(1) as member, peers() as (ours, lanes):
        ours.cut(1, True)
        ours.want({1: (member, frozenset({0}))})
        assert ours.is_cut(1)
        ours.cut(1, False)
        wait_until(lambda: lanes.adopted == [(1, 0)], what="dialled when the cut ends")
        ours.drop(1)
        ours.lost(1, 0)
        wait_until(
            lambda: "peer 1" not in [thread.name for thread in threading.enumerate()],
            what="the dialling thread ends",
        )
        assert lanes.adopted == [(1, 0)]


def test_a_dial_under_way_is_not_adopted_after_a_drop():
    other = Other("a")
    other.may_welcome.clear()
    with other.listening(1) as member, peers() as (ours, lanes):
        ours.want({1: (member, frozenset({0}))})
        wait_until(lambda: other.hellos, what="dialled")
        ours.drop(1)
        other.may_welcome.set()
        wait_until(
            lambda: "peer 1" not in [thread.name for thread in threading.enumerate()],
            what="the dialling thread ends",
        )
        assert lanes.adopted == []


def test_a_silent_peer_holds_up_no_other():
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,  # the kernel accepts, nobody welcomes
        Other("a").listening(2) as member,
        peers() as (ours, lanes),
    ):
        mute = Member(1, "x", NOBODY, Endpoint("127.0.0.1", silent.getsockname()[1]), "here")
        ours.want({1: (mute, frozenset({0})), 2: (member, frozenset({0, 1}))})
        wait_until(lambda: len(lanes.adopted) == 2, what="the other's lanes")
        assert {peer for peer, _ in lanes.adopted} == {2}


def test_a_server_with_another_map_is_none_of_ours():
    other = Other("a")
    other.map_version = 5
    with other.listening(1) as member, pytest.raises(ProtocolError, match="another shard map"):
        DIALLING.dial(member, 0)
