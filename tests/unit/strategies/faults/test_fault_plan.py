"""A plan of faults as a person writes it, and chaos as a seed draws it."""

from __future__ import annotations

from collections import Counter

import pytest

import manyhands as mh
from manyhands.errors import ConfigError
from manyhands.strategies.faults.random_faults import RandomFaults

ALIVE = ["server/0", "server/1", "server/2", "replica/0", "replica/1", "controller"]


def test_a_plan_grows_and_stays_as_it_was():
    empty = mh.FaultPlan()
    plan = (
        empty.kill("server/1", at_push=500)
        .pause("replica/0", for_s=5)
        .cut("server/0", "server/2", for_s=3, at_s=1.5)
    )
    assert not empty
    assert [fault.action for fault in plan.faults] == ["kill", "pause", "cut"]
    kill, pause, cut = plan.faults
    assert [kill.is_due(pushes, 1e9) for pushes in (499, 500)] == [False, True]
    assert pause.is_due(0, 0.0)
    assert [cut.is_due(10**9, seconds) for seconds in (1.4, 1.5)] == [False, True]
    assert mh.FaultPlan().random()
    assert plan.random(seed=3).in_words() == [
        "kill server/1 at push 500",
        "pause replica/0 for 5 s at 0 s",
        "cut server/0 server/2 for 3 s at 1.5 s",
        "chaos every 4 s, seed 3",
    ]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda plan: plan.kill("serverr/1"), "'serverr/1'"),
        (lambda plan: plan.kill("server/-1"), "'server/-1'"),
        (lambda plan: plan.kill(1), "1 is no process"),
        (lambda plan: plan.kill("server/1", at_push=1, at_s=1), "give one"),
        (lambda plan: plan.kill("server/1", at_push=-1), "-1"),
        (lambda plan: plan.kill("server/1", at_s=float("nan")), "nan"),
        (lambda plan: plan.pause("server/1", for_s=0), "for_s is 0"),
        (lambda plan: plan.cut("server/1", "server/1", for_s=1), "two servers"),
        (lambda plan: plan.cut("server/1", "replica/0", for_s=1), "two servers"),
        (lambda plan: plan.random(seed=-3), "-3"),
        (lambda plan: plan.random(every_s=0), "every_s is 0"),
        (lambda plan: plan.kill("server/3").check(servers=3, replicas=9), "no 'server/3'"),
        (lambda plan: plan.kill("replica/2").check(servers=3, replicas=2), "no 'replica/2'"),
    ],
)
def test_what_cannot_be_done_is_refused(make, said: str):
    with pytest.raises(ConfigError, match=said.replace("/", r"\/")):
        make(mh.FaultPlan())


def drawn(seed: int, count: int = 300, spared: tuple[str, ...] = ()) -> list:
    chaos = RandomFaults(seed, every_s=4.0)
    return [(round(chaos.pause_s(), 6), chaos.draw(ALIVE, spared)) for _ in range(count)]


def test_a_seed_draws_the_same_again_and_another_seed_other_faults():
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)
    assert all(2.0 <= pause <= 6.0 for pause, _ in drawn(7))


def test_everything_happens_to_everybody_but_to_those_who_are_spared():
    faults = [fault for _, fault in drawn(1)]
    assert {fault.action for fault in faults} == {"kill", "pause", "cut"}
    assert {fault.targets[0] for fault in faults if fault.action == "kill"} == set(ALIVE)
    cuts = [fault.targets for fault in faults if fault.action == "cut"]
    assert all(len(set(two)) == 2 and all("server/" in name for name in two) for two in cuts)
    spared = Counter(fault.targets[0] for _, fault in drawn(1, spared=("server/1",)))
    assert "server/1" not in spared
    assert RandomFaults(1, 1.0).draw(["server/0"], ["server/0"]) is None
