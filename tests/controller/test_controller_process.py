"""A real controller process: servers come, die, hang and quarrel, and it is killed itself."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path

import pytest

from manyhands.controller.controller import PLACEMENT_KEY
from manyhands.controller.registry_address import open_registry
from manyhands.controller.task import StopController
from manyhands.errors import ConfigError, ManyhandsError
from manyhands.parameter_server.placement import Placement
from manyhands.transport.calls import Caller
from tests.cluster.conftest import wait_until
from tests.controller.scripted import TOKEN, Stage, is_whole, stage


def led_by(*servers: int):
    """Whether every bucket is led by one of these."""
    return lambda placement: all(p.primary in servers for p in placement.buckets.values())


def without(server: int):
    """Whether no bucket has a copy there."""
    return lambda placement: all(server not in p.copies for p in placement.buckets.values())


def test_a_killed_server_is_replaced_by_its_mirrors_and_comes_back(tmp_path: Path) -> None:
    with stage(tmp_path, servers=3) as run:
        first = run.wait(is_whole(3), what="a first placement")
        assert {b: place.primary for b, place in first.buckets.items()} == run.buckets.homes
        wait_until(lambda: len(run.servers[1].leads()) == 4, what="server 1 leads its buckets")
        run.servers[1].close()
        after = run.wait(led_by(0, 2), what="its buckets are led by others")
        for bucket, place in after.buckets.items():
            moved = first.buckets[bucket].primary == 1
            assert place.lease == (2 if moved else 1)
            assert place.origin == ("held" if moved else "new")
        run.start_server(1)
        run.wait(is_whole(3), what="the new process of server 1 holds copies of everything")
        whole = run.wait(
            lambda p: len({place.primary for place in p.buckets.values()}) == 3,
            what="it leads its part",
        )
        assert whole.names(1, run.servers[1].incarnation)


def test_a_server_that_hangs_is_replaced_and_joins_again(tmp_path: Path) -> None:
    with stage(tmp_path, servers=3) as run:
        run.wait(is_whole(3), what="a first placement")
        run.servers[2].silent = True
        paused = run.wait(without(2), what="the silent server is left out")
        assert 2 in paused.members
        run.servers[2].silent = False
        run.wait(is_whole(3), what="it has copies again")
        assert run.servers[2].incarnation == paused.members[2].incarnation


def test_a_new_process_voids_the_copies_of_the_old_one_at_once(tmp_path: Path) -> None:
    """Even when the old one was never missed: its connection stays, its heartbeats go on."""
    with stage(tmp_path, servers=3, lease_s=300.0, closed_s=300.0) as run:
        run.wait(is_whole(3), what="a first placement")
        zombie = run.servers[0]
        for server in (1, 2):
            run.servers[server].fills = False
        reborn = run.start_server(0)
        placement = run.wait(led_by(1, 2), what="the new process leads nothing")
        assert placement.names(0, reborn.incarnation)
        assert all(0 not in place.mirrors for place in placement.buckets.values())
        wait_until(lambda: bool(zombie.refusals), what="the old process is told to end")
        assert "must end" in zombie.refusals[0]
        for server in (1, 2):
            run.servers[server].fills = True
        run.wait(is_whole(3), what="the new process is filled")
        zombie.close()


def test_copies_join_only_by_their_primarys_word(tmp_path: Path) -> None:
    with stage(tmp_path, servers=3, copies=2) as run:
        run.wait(is_whole(2), what="a first placement")
        for server in run.servers.values():
            server.fills = False
        run.servers[0].close()
        joining = run.wait(
            lambda p: without(0)(p) and all(len(b.copies) == 2 for b in p.buckets.values()),
            what="copies begin to join",
        )
        bucket, place = next((b, p) for b, p in joining.buckets.items() if p.joining)
        entry = place.joining[0]
        caller = Caller(run.endpoint, token=TOKEN)
        primary = run.servers[place.primary]
        for since, lease in ((entry.since - 1, place.lease), (entry.since, place.lease - 1)):
            words = primary.words() | {"in_step": [[bucket, entry.server, since, lease]]}
            caller.call("heartbeat", 10.0, **words)
        impostor = run.servers[3 - primary.server]
        words = impostor.words() | {"in_step": [[bucket, entry.server, entry.since, place.lease]]}
        caller.call("heartbeat", 10.0, **words)
        assert run.placement() == joining
        for server in run.servers.values():
            server.fills = True
        run.wait(is_whole(2), what="copies are in step")
        caller.close()


def test_a_suspect_leaves_the_buckets_of_that_primary_alone_and_is_not_taken_back_at_once(
    tmp_path: Path,
) -> None:
    with stage(tmp_path, servers=3) as run:
        run.wait(is_whole(3), what="a first placement")
        run.servers[0].suspects = {2}

        def apart(p: Placement) -> bool:
            return all(2 not in place.copies for place in p.buckets.values() if place.primary == 0)

        cut = run.wait(apart, what="server 2 left the buckets of server 0")
        assert all(0 in place.copies for place in cut.buckets.values() if place.primary == 2)
        assert all(2 in place.mirrors for place in cut.buckets.values() if place.primary == 1)
        run.servers[0].suspects = set()
        again = run.wait(is_whole(3), what="server 2 joined again")
        assert again.version <= cut.version + 4, "it came and went meanwhile"


def test_a_primary_that_no_mirror_answers_is_the_one_that_is_cut_off(tmp_path: Path) -> None:
    with stage(tmp_path, servers=3) as run:
        run.wait(is_whole(3), what="a first placement")
        run.servers[0].suspects = {1, 2}
        placement = run.wait(led_by(1, 2), what="others lead what it led")
        assert all(len(place.mirrors) >= 1 for place in placement.buckets.values())


@pytest.mark.parametrize("known", ["started again", "declared dead"])
def test_without_mirrors_a_server_is_waited_for_until_it_is_known_to_be_dead(
    tmp_path: Path, known: str
) -> None:
    with stage(tmp_path, servers=2, copies=1) as run:
        first = run.wait(is_whole(1), what="a first placement")
        lost = run.servers[1]
        lost.silent = True
        wait_until(
            lambda: not run.ask("status")["servers"]["1"]["alive"], what="the server is missed"
        )
        assert run.placement() == first
        lost.silent = False
        wait_until(lambda: run.ask("status")["servers"]["1"]["alive"], what="it is heard again")
        assert run.placement() == first
        lost.close()
        if known == "started again":
            run.start_server(1)
        else:
            assert run.ask("dead", server=1, incarnation="another process") == {}
            assert run.ask("dead", server=1, incarnation=lost.incarnation) == {}
        after = run.wait(
            lambda p: (
                not p.names(1, lost.incarnation)
                and all(place.primary is not None for place in p.buckets.values())
            ),
            what="somebody reads its buckets back",
        )
        for bucket, place in first.buckets.items():
            found = after.buckets[bucket]
            if place.primary == 1:
                assert (found.origin, found.lease) == ("store", 2)
            else:
                assert (found.primary, found.lease) == (0, 1)


def test_a_drained_server_is_emptied_and_stays_so_when_controllers_change(tmp_path: Path) -> None:
    with stage(tmp_path, servers=4, copies=2) as run:
        run.wait(is_whole(2), what="a first placement")
        assert run.ask("drain", server=3) == {}
        run.replace_controller()
        run.wait(without(3), what="server 3 is empty")
        wait_until(lambda: run.ask("status")["servers"]["3"]["drained"], what="it may end")
        whole = run.wait(is_whole(2), what="every bucket has its copies elsewhere")
        assert whole.members[3].draining
        run.servers[3].close()
        run.ask("undrain", server=3)
        run.start_server(3)
        run.wait(lambda p: not without(3)(p) and is_whole(2)(p), what="it has its share again")
        with pytest.raises(ConfigError, match=r"no server 9; the run has \[0, 1, 2, 3\]"):
            run.caller.call("drain", 10.0, server=9)


def test_a_new_server_gets_its_share(tmp_path: Path) -> None:
    with stage(tmp_path, servers=2, buckets=30, copies=2) as run:
        run.wait(is_whole(2), what="a first placement")
        run.start_server(2)
        run.wait(
            lambda p: is_whole(2)(p) and sum(2 in b.copies for b in p.buckets.values()) >= 18,
            what="the new server holds its share",
        )
        run.wait(
            lambda p: sum(b.primary == 2 for b in p.buckets.values()) >= 9,
            what="it leads its share",
        )


def test_a_killed_controller_is_replaced_and_nobody_notices(tmp_path: Path) -> None:
    with stage(tmp_path, servers=3) as run:
        first = run.wait(is_whole(3), what="a first placement")
        before = {n: server.incarnation for n, server in run.servers.items()}
        for _ in range(2):
            run.replace_controller()
            wait_until(lambda: all(_is_heard(run, n) for n in run.servers), what="all are heard")
            assert run.placement() == first, "servers were given up with their controller"
        assert {n: server.incarnation for n, server in run.servers.items()} == before
        run.roles[-1].kill()
        run.servers[0].close()
        run.start_controller(port=run.endpoint.port)
        run.wait(led_by(1, 2), what="who died with the controller is replaced by the next one")


def test_a_paused_controller_takes_nobodys_silence_for_death(tmp_path: Path) -> None:
    with stage(tmp_path, servers=3, leader_s=300.0) as run:  # it never doubts its lead
        first = run.wait(is_whole(3), what="a first placement")
        beats = {n: server.unanswered for n, server in run.servers.items()}
        os.kill(run.roles[-1].pid, signal.SIGSTOP)
        wait_until(
            lambda: all(server.unanswered > beats[n] + 1 for n, server in run.servers.items()),
            what="heartbeats are not answered",
        )
        os.kill(run.roles[-1].pid, signal.SIGCONT)
        wait_until(lambda: all(_is_heard(run, n) for n in run.servers), what="all are heard")
        assert run.placement() == first


def test_of_two_controllers_one_stands_by_and_takes_over(tmp_path: Path) -> None:
    with stage(tmp_path, servers=3) as run:
        first = run.wait(is_whole(3), what="a first placement")
        second = run.start_controller()
        with Caller(second, token=TOKEN) as caller:
            wait_until(lambda: "stands by" in _refusal(caller), what="the second one stands by")
            os.kill(run.roles[0].pid, signal.SIGSTOP)  # its lease ends, it believes that it leads
            wait_until(lambda: _refusal(caller) == "", what="the second one leads")
            for server in run.servers.values():
                server.close()
            run.endpoint = second
            for server in run.servers:
                run.start_server(server)
            wait_until(
                lambda: _version(caller) > first.version,
                what="the second one decides",
            )
            os.kill(run.roles[0].pid, signal.SIGCONT)
            wait_until(
                lambda: "stands by" in _refusal(run.caller),
                what="the first one notices and stands by",
            )
            run.roles[1].send(StopController())
            wait_until(lambda: _refusal(run.caller) == "", what="the first one leads again")


def test_a_locked_registry_stops_nobody(tmp_path: Path) -> None:
    with stage(tmp_path, servers=3) as run:
        run.wait(is_whole(3), what="a first placement")
        locked = sqlite3.connect(tmp_path / "registry.db", isolation_level=None)
        locked.execute("BEGIN IMMEDIATE")
        run.servers[0].close()
        alive = run.servers[1].unanswered, run.servers[2].unanswered
        wait_until(
            lambda: not run.ask("status")["servers"]["0"]["alive"], what="server 0 is missed"
        )
        held = {place.primary for place in run.placement().buckets.values()}
        assert held == {0, 1, 2}, "a decision was told that is not in the registry"
        assert alive == (run.servers[1].unanswered, run.servers[2].unanswered)
        locked.execute("ROLLBACK")
        locked.close()
        run.wait(led_by(1, 2), what="the decision is made up for")


def test_an_emptied_registry_is_not_taken_for_a_new_run(tmp_path: Path) -> None:
    with stage(tmp_path, servers=3) as run:
        run.wait(is_whole(3), what="a first placement")
        wait_until(lambda: run.servers[0].version > 0, what="servers know it")
        run.roles[-1].kill()
        registry = open_registry(run.registry)
        assert registry.delete(PLACEMENT_KEY)
        run.start_controller(port=run.endpoint.port)
        wait_until(lambda: run.ask("status")["heard"] == [0, 1, 2], what="all are heard")
        answered = run.servers[0].answered
        wait_until(lambda: run.servers[0].answered > answered + 10, what="time to decide")
        assert run.placement() is None
        assert registry.get(PLACEMENT_KEY) is None
        registry.close()


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("heartbeat", {}),
        ("heartbeat", {"server": "x"}),
        ("dead", {"server": 1}),
        ("drain", {}),
        ("placement", {"after": "x"}),
        ("placement", {"after": 0, "wait_s": -1}),
        ("no such thing", {}),
    ],
)
def test_nonsense_is_answered_and_changes_nothing(
    tmp_path: Path, command: str, arguments: dict
) -> None:
    with stage(tmp_path, servers=2, buckets=2) as run:
        first = run.wait(is_whole(2), what="a first placement")
        with pytest.raises(ManyhandsError):
            run.caller.call(command, 10.0, **arguments)
        assert run.placement() == first


def _is_heard(run: Stage, server: int) -> bool:
    return bool(run.ask("status")["servers"].get(str(server), {}).get("alive"))


def _version(caller: Caller) -> int:
    found = caller.call("placement", 10.0, after=-1, wait_s=0)["placement"]
    return 0 if found is None else Placement.from_json(found).version


def _refusal(caller: Caller) -> str:
    """Why a controller does not answer; nothing when it does."""
    try:
        caller.call("status", 2.0)
    except ManyhandsError as error:
        return str(error)
    return ""
