"""The model of the replication protocol: nothing is lost in it, and broken rules are noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.protocol_model.lending import lending_mutations, search_lending
from benchmarks.protocol_model.rules import PROTOCOL, mutations
from benchmarks.protocol_model.scenes import HUNTS, ONE, QUICK
from benchmarks.protocol_model.search import Bounds, beginning, search, steps
from benchmarks.protocol_model.words import told

SMALL = [bounds for bounds in QUICK if "2 changes" not in bounds.name]
SOON = [bounds for bounds in HUNTS if "away and back" not in bounds.name]
LATER = ("align_at_new_lease", "acks_after_align_only")  # need tens of thousands of states


@pytest.mark.parametrize("bounds", SMALL, ids=lambda bounds: bounds.name)
def test_no_acknowledged_update_is_lost_or_doubled(bounds: Bounds) -> None:
    found = search(bounds)

    assert found.broken is None, "\n".join(told(found.trace))
    assert found.complete
    assert found.states > 1_000


@pytest.mark.parametrize("rule", [rule for rule in mutations() if rule not in LATER])
def test_a_broken_rule_is_noticed(rule: str) -> None:
    rules = mutations()[rule]

    assert any(search(bounds, rules, limit=15_000).broken for bounds in SOON)


def test_memory_is_not_used_again_while_it_is_lent() -> None:
    found = search_lending()

    assert found.broken is None, "\n".join(found.way)
    assert found.states > 1_000


@pytest.mark.parametrize("rule", lending_mutations())
def test_a_broken_rule_of_lending_is_noticed(rule: str) -> None:
    assert search_lending(lending_mutations()[rule]).broken


def test_pushes_are_acknowledged_where_nothing_goes_wrong() -> None:
    """Otherwise nothing could ever be lost."""
    bounds = Bounds("peace", (1, 2), ONE, placements=0, crashes=0, breaks=0)
    seen, waiting = set(), [beginning(bounds)]
    while waiting:
        world = waiting.pop()
        following = [after for _, after in steps(world, bounds, PROTOCOL)]
        waiting += [after for after in following if after not in seen]
        seen.update(following)

    final = [world for world in seen if not list(steps(world, bounds, PROTOCOL))]
    assert final
    assert all(world.acked == (0,) for world in final)
    assert all(server.contents == (0,) for world in final for server in world.servers)


def test_the_way_to_a_lost_update_is_told_in_words() -> None:
    found = search(SMALL[0], replace(PROTOCOL, wait_for_copies=False))

    assert told(found.trace) == [
        " 1. A applies update 0; A holds [0]",
        " 2. A acknowledges update 0; A holds [0]",
    ]
