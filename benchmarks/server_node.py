"""Parameters updated per second through one parameter server, beside ps-lite, a socket and memory.

Server and client are processes on a core each. Sixteen chunks of one size (four of 16 MB) are
pushed to, pulled or both, one at a time or sixteen under way: over TCP on loopback, behind TLS as
between machines (not with `--quick`), and over the same-machine path. The socket carries the same
bytes and does nothing with them; memory is `w += g` where it lies (a copy for pulls). Figure 9 of
the Adam paper follows: the update rate by number of lanes.

ps-lite takes part with `--ps-lite DIR`, a checkout that was built (`include/`, `build/libps.a`),
where libzmq is installed. Without it, what it did on another machine is shown and nothing compared.
(The source package of byteps 0.2 on PyPI holds a copy. Its receiving thread spins, which on few
cores slows everything it does; make `zmq_msg_recv` block, as ps-lite's own does, to be fair to it.)
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.contestants.node import Node
from benchmarks.contestants.node_peers import FLOAT_BYTES, Cell, Memory, PsLite, RawSocket, Slice
from benchmarks.harness.machine import core_counts
from benchmarks.harness.native_program import Unavailable
from benchmarks.harness.report import picture, print_table, with_spread
from benchmarks.harness.rounds import Measure, Rounds, Spread, alternate, progress
from manyhands.transport.certificates import RunCertificates

OPERATIONS = {"push": "push", "pull": "pull", "both": "push and pull"}
SIZES = {4 << 10: "4 KB", 64 << 10: "64 KB", 1 << 20: "1 MB", 16 << 20: "16 MB"}
WINDOWS = (1, 16)
TCP, TLS, SAME_MACHINE = "tcp", "tls", "same_machine"
OURS = (TCP, TLS, SAME_MACHINE)
SOCKET, MEMORY, PS_LITE = "socket", "memory", "ps_lite"
TITLES = {
    TCP: "TCP",
    TLS: "TLS",
    SAME_MACHINE: "same machine",
    PS_LITE: "ps-lite",
    SOCKET: "raw socket",
    MEMORY: "memory",
}
COMPARED = (
    (TCP, PS_LITE),
    (SAME_MACHINE, PS_LITE),
    (TCP, SOCKET),
    (SAME_MACHINE, MEMORY),
    (TLS, TCP),
)
AIMS = {TCP: 1.3, SAME_MACHINE: 2.0}  # times ps-lite, at every size
# Microseconds of a push or a pull, one at a time, on a machine of two Xeon cores.
PS_LITE_ELSEWHERE_US = {4 << 10: 71.0, 64 << 10: 84.0, 1 << 20: 321.0, 16 << 20: 6400.0}
FIGURE_9 = (64, 4096)  # rows and columns of a chunk: 1 MB


@dataclass(frozen=True)
class Plan:
    """What a run measures, and for how long."""

    rounds: int
    seconds: float
    tls: bool


QUICK = Plan(rounds=2, seconds=0.05, tls=False)
FULL = Plan(rounds=7, seconds=0.3, tls=True)


class Contestant(Protocol):
    def measure(self, cell: Cell, seconds: float) -> Slice: ...


@dataclass
class Measured:
    """A cell's rates in bytes/s, round by round, and the middle of single operations."""

    rounds: Rounds
    p50_us: dict[str, Spread] = field(default_factory=dict)


Results = dict[Cell, Measured]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ps-lite", type=Path, metavar="DIR", help="a built checkout of ps-lite")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="BYTES", help="only these sizes")


def contestants(stack: ExitStack, plan: Plan, ps_lite: Path | None) -> dict[str, Contestant]:
    """Everyone who can take part here, started."""
    everyone: dict[str, Any] = {
        TCP: Node(),
        SAME_MACHINE: Node(same_machine=True),
        SOCKET: RawSocket(),
        MEMORY: Memory(),
    }
    if plan.tls:
        everyone[TLS] = Node(certificates=RunCertificates.make())
    if ps_lite is not None:
        everyone[PS_LITE] = PsLite(ps_lite.absolute())
    present = {}
    for name, contestant in everyone.items():
        try:
            present[name] = stack.enter_context(contestant)
        except Unavailable as reason:
            progress(f"Without {TITLES[name]}: {reason}.")
    return present


def measure(everyone: dict[str, Contestant], cell: Cell, plan: Plan) -> Measured:
    each_us: dict[str, list[float]] = defaultdict(list)

    def turn(name: str) -> Measure:
        def bytes_per_second() -> float:
            found = everyone[name].measure(cell, plan.seconds)
            each_us[name].append(found.p50_us)
            return found.per_second * cell.bytes

        return bytes_per_second

    for contestant in everyone.values():
        contestant.measure(cell, plan.seconds / 4)
    rounds = alternate({name: turn(name) for name in everyone}, rounds=plan.rounds)
    latencies = {n: Spread.of(v) for n, v in each_us.items()} if cell.window == 1 else {}
    return Measured(rounds, latencies)


def measure_all(plan: Plan, ps_lite: Path | None, sizes: list[int]) -> Results:
    results: Results = {}
    with ExitStack() as stack:
        everyone = contestants(stack, plan, ps_lite)
        for size in sizes:
            progress(f"{SIZES.get(size, size)} ...")
            for operation in OPERATIONS:
                for window in WINDOWS:
                    cell = Cell(operation, size, window)
                    results[cell] = measure(everyone, cell, plan)
    return results


def lanes_measured(plan: Plan) -> dict[str, Rounds]:
    """Figure 9: parameters updated per second by number of lanes, for deltas and for factors."""
    with ExitStack() as stack:
        nodes = {
            str(lanes): stack.enter_context(Node(same_machine=True, together=True, lanes=lanes))
            for lanes in core_counts()
        }
        progress(f"Figure 9, {', '.join(nodes)} lanes ...")
        for node in nodes.values():
            node.hold(*FIGURE_9)
        floats = FIGURE_9[0] * FIGURE_9[1]
        cell = Cell("push", floats * FLOAT_BYTES, 16)

        def deltas(node: Node) -> Measure:
            return lambda: floats * node.push(cell.window, plan.seconds).per_second

        def factors(node: Node) -> Measure:
            return lambda: floats * node.push_factors(plan.seconds).per_second

        return {
            form: alternate({n: turn(node) for n, node in nodes.items()}, rounds=plan.rounds)
            for form, turn in (("deltas", deltas), ("factors", factors))
        }


def figures(cell: Cell, measured: Measured) -> dict[str, Any]:
    rounds = measured.rounds
    found: dict[str, Any] = {
        "operation": cell.operation,
        "bytes": cell.bytes,
        "window": cell.window,
        "bytes_per_s": {name: rounds.rate(name).figures(0) for name in rounds.rates},
        "parameters_per_s": {
            name: round(rounds.rate(name).median / FLOAT_BYTES) for name in rounds.rates
        },
        "p50_us": {name: spread.figures(1) for name, spread in measured.p50_us.items()},
        "ratios": {
            ours: {
                name: rounds.ratio(ours, name).figures() for name in rounds.rates if name != ours
            }
            for ours in OURS
            if ours in rounds.rates
        },
    }
    if PS_LITE in rounds.rates:
        found["aims"] = AIMS
        found["met"] = {
            ours: rounds.ratio(ours, PS_LITE).median >= aim for ours, aim in AIMS.items()
        }
    return found


def lane_figures(form: str, measured: Rounds) -> dict[str, Any]:
    return {
        "form": form,
        "parameters_per_s": {lanes: measured.rate(lanes).figures(0) for lanes in measured.rates},
        "speedup": {lanes: measured.ratio(lanes, "1").figures() for lanes in measured.rates},
    }


def print_operation(operation: str, results: Results) -> None:
    cells = {cell: m for cell, m in results.items() if cell.operation == operation}
    names = [n for n in TITLES if n in next(iter(cells.values())).rounds.rates]
    elsewhere = PS_LITE not in names and operation != "both"
    print_table(
        f"{OPERATIONS[operation]}: GB/s of parameters, and microseconds each one at a time",
        [
            "bytes, under way",
            *(TITLES[name] for name in names),
            *(["ps-lite elsewhere"] if elsewhere else []),
        ],
        [
            [
                _name(cell),
                *(_rate(measured, name) for name in names),
                *([_elsewhere(cell)] if elsewhere else []),
            ]
            for cell, measured in cells.items()
        ],
    )
    pairs = [(a, b) for a, b in COMPARED if a in names and b in names]
    print_table(
        f"{OPERATIONS[operation]}: times as fast, by round",
        ["bytes, under way", *(f"{TITLES[a]} : {TITLES[b]}" for a, b in pairs)],
        [
            [_name(cell), *(with_spread(measured.rounds.ratio(a, b), ".2f") for a, b in pairs)]
            for cell, measured in cells.items()
        ],
    )


def _name(cell: Cell) -> str:
    return f"{SIZES.get(cell.bytes, cell.bytes)}, {cell.window}"


def _rate(measured: Measured, name: str) -> str:
    rate = f"{measured.rounds.rate(name).median / 1e9:.2f}"
    latency = measured.p50_us.get(name)
    return rate if latency is None else f"{rate}  {latency.median:,.0f} us"


def _elsewhere(cell: Cell) -> str:
    latency_us = PS_LITE_ELSEWHERE_US.get(cell.bytes)
    if latency_us is None or cell.window != 1:
        return ""
    return f"{cell.bytes / latency_us / 1e3:.2f}  {latency_us:,.0f} us"


def print_lanes(lanes: dict[str, Rounds]) -> None:
    columns = ["lanes", *(f"{form}, millions/s" for form in lanes)]
    counts = list(next(iter(lanes.values())).rates)

    def cell(measured: Rounds, count: str) -> str:
        rate = measured.rate(count)
        return with_spread(Spread(rate.median / 1e6, rate.low / 1e6, rate.high / 1e6))

    rows = [[count, *(cell(measured, count) for measured in lanes.values())] for count in counts]
    print_table("Figure 9: parameters updated per second by number of lanes", columns, rows)


def draw(results: Results, lanes: dict[str, Rounds]) -> None:
    sizes = sorted({cell.bytes for cell in results})
    with picture("server_node", 5) as panels:
        for panel, (operation, title) in zip(panels, OPERATIONS.items(), strict=False):
            for name in next(iter(results.values())).rounds.rates:
                for window, style in zip(WINDOWS, ("--", "-"), strict=True):
                    cells = [results[Cell(operation, size, window)] for size in sizes]
                    rates = [cell.rounds.rate(name).median / 1e9 for cell in cells]
                    label = TITLES[name] if style == "-" else None
                    color = f"C{list(TITLES).index(name)}"
                    panel.plot(sizes, rates, style, marker="o", color=color, label=label)
            panel.set(xscale="log", yscale="log", xlabel="bytes", ylabel="GB/s")
            panel.set_title(f"{title}, 16 under way (dashed: 1)")
            panel.legend()
        for panel, (form, measured) in zip(panels[3:], lanes.items(), strict=False):
            counts = list(map(int, measured.rates))
            panel.plot(counts, [measured.rate(n).median / 1e6 for n in measured.rates], "o-")
            panel.set(xlabel="lanes", ylabel="millions of parameters/s", ylim=0, xticks=counts)
            panel.set_title(f"Figure 9: {form}")
        panels[5].axis("off")


def run(options: argparse.Namespace) -> dict[str, Any]:
    plan = QUICK if options.quick else FULL
    results = measure_all(plan, options.ps_lite, options.sizes or list(SIZES))
    lanes = lanes_measured(plan)
    for operation in OPERATIONS:
        print_operation(operation, results)
    print_lanes(lanes)
    draw(results, lanes)
    return {
        "ps_lite": "measured" if options.ps_lite else "not measured here",
        "figures": [figures(cell, measured) for cell, measured in results.items()],
        "figure_9": [lane_figures(form, measured) for form, measured in lanes.items()],
    }
