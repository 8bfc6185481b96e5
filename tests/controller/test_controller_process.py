"""A real controller process: servers come, die, hang and quarrel; it is killed itself."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.conftest import wait_until
from tests.controller.scripted import is_whole, stage


def test_servers_get_buckets_and_a_killed_one_is_replaced_by_its_mirrors(tmp_path: Path) -> None:
    with stage(tmp_path, servers=3) as run:
        first = run.wait(is_whole(3), what="a first placement")
        assert {b: place.primary for b, place in first.buckets.items()} == run.buckets.homes
        led = run.servers[1].leads
        wait_until(lambda: len(led()) == 4, what="server 1 leads its buckets")
        run.servers[1].close()
        after = run.wait(
            lambda p: all(place.primary in (0, 2) for place in p.buckets.values()),
            what="its buckets are led by others",
        )
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
