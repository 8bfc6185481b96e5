"""Every state of a model of the replication protocol: is an acknowledged update lost or doubled.

The model is that of `docs/protocol.md`: one chunk, three servers, clients, a controller that may
take anyone for dead at any moment; messages late, lost and twice; crashes before, between and
after; servers that come back empty. It is searched exhaustively within bounds, breadth first. Then
every rule of the protocol is broken, one at a time, and the search must find what goes wrong:
`--trace` tells the shortest way there. Left out: what is read back from the durable store when all
copies of a bucket are gone, because that may lose what was not written yet.

A model of its own is that of the memory in which a copy has updates that it has not applied
(`protocol_model/lending.py`), searched and broken in the same way.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

from benchmarks.harness.report import print_table
from benchmarks.harness.rounds import progress
from benchmarks.protocol_model.lending import (
    LENDING,
    LendingRules,
    lending_mutations,
    search_lending,
)
from benchmarks.protocol_model.rules import PROTOCOL, Rules, mutations
from benchmarks.protocol_model.scenes import FULL, HUNTS, QUICK
from benchmarks.protocol_model.search import Bounds, Found, search
from benchmarks.protocol_model.words import told

LIMIT = 3_000_000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", action="store_true", help="tell how each broken rule goes wrong")
    parser.add_argument("--rule", help="break only this rule")


def timed(bounds: Bounds, rules: Rules = PROTOCOL) -> tuple[Found, float]:
    began = time.perf_counter()
    found = search(bounds, rules, limit=LIMIT)
    return found, time.perf_counter() - began


def check(scenes: tuple[Bounds, ...]) -> list[dict[str, Any]]:
    """The protocol itself: every scene to its end."""
    results = []
    for bounds in scenes:
        progress(f"{bounds.name} ...")
        found, seconds = timed(bounds)
        if found.broken is not None:
            print("\n".join([f"BROKEN: {found.broken}", *told(found.trace)]))
        results.append(
            {
                "scene": bounds.name,
                "states": found.states,
                "steps": found.steps,
                "depth": found.depth,
                "complete": found.complete,
                "broken": found.broken,
                "seconds": round(seconds, 1),
            }
        )
    return results


def hunt(rule: str, rules: Rules) -> dict[str, Any]:
    """One rule broken: the first scene in which it shows."""
    states = 0
    for bounds in HUNTS:
        found, _ = timed(bounds, rules)
        states += found.states
        if found.broken is not None:
            return {
                "rule": rule,
                "caught": True,
                "scene": bounds.name,
                "states": states,
                "steps": len(found.trace),
                "broken": found.broken,
                "trace": told(found.trace),
            }
    return {"rule": rule, "caught": False, "states": states}


def check_lending() -> dict[str, Any]:
    """Memory that is lent, in every state."""
    began = time.perf_counter()
    found = search_lending(LENDING)
    if found.broken is not None:
        print("\n".join([f"BROKEN: {found.broken}", *found.way]))
    return {
        "scene": "memory that is lent to a copy",
        "states": found.states,
        "steps": found.steps,
        "depth": found.depth,
        "complete": True,
        "broken": found.broken,
        "seconds": round(time.perf_counter() - began, 1),
    }


def hunt_lending(rule: str, rules: LendingRules) -> dict[str, Any]:
    found = search_lending(rules)
    return {
        "rule": rule,
        "caught": found.broken is not None,
        "scene": "memory that is lent to a copy",
        "states": found.states,
        "steps": len(found.way),
        "broken": found.broken,
        "trace": list(found.way),
    }


def print_checks(results: list[dict[str, Any]]) -> None:
    print_table(
        "The protocol as it is",
        ["scene", "states", "steps", "longest way", "all of them", "broken"],
        [
            [
                result["scene"],
                f"{result['states']:,}",
                f"{result['steps']:,}",
                str(result["depth"]),
                "yes" if result["complete"] else "NO",
                result["broken"] or "nothing",
            ]
            for result in results
        ],
    )


def print_hunts(hunts: list[dict[str, Any]]) -> None:
    print_table(
        "One rule broken at a time",
        ["rule", "caught", "steps to it", "states", "scene"],
        [
            [
                found["rule"],
                "yes" if found["caught"] else "NO",
                str(found.get("steps", "")),
                f"{found['states']:,}",
                found.get("scene", ""),
            ]
            for found in hunts
        ],
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    hunters = {rule: partial(hunt, rule, rules) for rule, rules in mutations().items()}
    for rule, lending in lending_mutations().items():
        hunters[rule] = partial(hunt_lending, rule, lending)
    if options.rule:
        hunters = {options.rule: hunters[options.rule]}
    results = [*check(QUICK if options.quick else FULL), check_lending()]
    hunts = []
    for rule, hunter in hunters.items():
        progress(f"without {rule} ...")
        hunts.append(hunter())
    print_checks(results)
    print_hunts(hunts)
    if options.trace:
        for found in hunts:
            print("\n".join([f"\nWithout {found['rule']}:", *found.get("trace", ["nothing"])]))
    return {
        "scenes": results,
        "states": sum(result["states"] for result in results),
        "rules_broken": [{k: v for k, v in found.items() if k != "trace"} for found in hunts],
        "met": all(r["complete"] and not r["broken"] for r in results)
        and all(found["caught"] for found in hunts),
    }
