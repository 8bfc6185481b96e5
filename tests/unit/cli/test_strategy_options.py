"""A strategy's options on the command line: typed by its dataclass, refused in a sentence, kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest

from manyhands.cli.building import rebuild
from manyhands.cli.strategy_options import (
    make_strategy,
    offered_options,
    recorded,
    requested_options,
)
from manyhands.errors import ConfigError
from manyhands.run.config_file import read_config
from manyhands.strategies.catalogue import STRATEGIES
from manyhands.strategies.hogwild import Hogwild
from manyhands.strategies.synchronous import Synchronous

Here = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Clipped:
    clip: float | None = None


@dataclass(frozen=True, slots=True)
class Pace(Clipped):
    lr: float = 0.7
    momentum: float = 0.9


@dataclass(frozen=True, slots=True)
class Fleet(Synchronous):
    """Trains like the synchronous strategy and has options of every kind."""

    replicas: int | None = None
    servers: int = 1
    push_every: Annotated[int, "steps between pushes"] = 1
    push: Literal["gradients", "weights"] = "gradients"
    compress: Literal["bfloat16", "int8"] | None = None
    keep: float = 0.01
    outer: Pace | None = None
    forms: Mapping[str, str] | None = None
    share_batch: bool = True
    crews: int = 1

    name: ClassVar[str] = "fleet"

    def __post_init__(self) -> None:
        if self.servers > 8:
            raise ConfigError(f"Fleet: servers is {self.servers}; expected at most 8.")


@pytest.fixture(autouse=True)
def fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "fleet", Fleet)  # type: ignore[arg-type]


def test_options_are_typed_by_the_strategys_fields() -> None:
    texts = {
        "replicas": 2,
        "push_every": "5",
        "push": "weights",
        "compress": "int8",
        "keep": "0.5",
        "share_batch": "no",
    }
    assert make_strategy("fleet", texts) == Fleet(
        replicas=2, push_every=5, push="weights", compress="int8", keep=0.5, share_batch=False
    )
    assert make_strategy("fleet", {"replicas": "none", "compress": "none"}) == Fleet()
    assert make_strategy("hogwild", {"workers": 3}) == Hogwild(workers=3)
    assert make_strategy("synchronous", {}) == Synchronous()


def test_a_part_of_a_strategy_lends_its_fields() -> None:
    assert make_strategy("fleet", {}).outer is None  # type: ignore[attr-defined]
    assert make_strategy("fleet", {"outer_momentum": "0.5"}) == Fleet(outer=Pace(momentum=0.5))


def test_what_a_command_line_cannot_carry_is_not_offered() -> None:
    offered = offered_options(Fleet)
    assert "forms" not in offered
    assert "outer" not in offered
    assert "outer_clip" not in offered
    assert offered["push_every"].description == "steps between pushes"
    assert offered["outer_lr"].default == 0.7


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        (
            "hogwild",
            {"crews": 2},
            "The strategy hogwild has no option 'crews'. It belongs to fleet; choose "
            "--strategy fleet for it. The options of hogwild are: workers, share_batch, "
            "wide_weights.",
        ),
        ("fleet", {"push_evry": "2"}, "has no option 'push_evry'. Did you mean 'push_every'?"),
        ("fleet", {"forms": "x"}, "The strategy fleet has no option 'forms'."),
        (
            "fleet",
            {"push_every": "often"},
            "Option 'push_every' is 'often'; expected a whole number, for example push_every=1.",
        ),
        ("fleet", {"push": "pull"}, "Option 'push' is 'pull'; expected gradients or weights"),
        ("fleet", {"servers": 9}, "Fleet: servers is 9; expected at most 8."),
        ("flet", {}, "No strategy is called 'flet'. Did you mean 'fleet'?"),
    ],
)
def test_refusals_are_a_sentence(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_strategy(name, options)
    assert sentence in str(raised.value)


def test_flags_and_pairs_are_joined() -> None:
    flags = {"replicas": 2, "servers": None}
    assert requested_options(flags, ["keep=0.1"]) == {"replicas": 2, "keep": "0.1"}
    with pytest.raises(ConfigError, match="replicas is given twice: --replicas 2 and --strategy-s"):
        requested_options(flags, ["replicas=3"])
    with pytest.raises(ConfigError, match="--strategy-set 'keep' is not key=value"):
        requested_options({}, ["keep"])


def test_a_record_rebuilds_the_same_strategy() -> None:
    options = {"replicas": "none", "compress": "int8", "outer_lr": "0.3", "share_batch": "no"}
    record = recorded("fleet", options)
    assert record == {
        "replicas": "none",
        "compress": "int8",
        "outer_lr": 0.3,
        "share_batch": False,
    }
    assert make_strategy("fleet", record) == make_strategy("fleet", options)


def test_a_run_keeps_its_options_and_resumes_with_them(here: Here, folder: Path) -> None:
    options = ["--replicas", "2", "--servers", "3", "--strategy-set", "push_every=5"]
    trained = here(
        "train", "tiny.py", "--strategy", "fleet", *options, "--epochs", "1", "--run-dir", "run"
    )
    assert trained.exit_code == 0, trained.output
    record = read_config(folder / "run" / "run.toml")["recipe"]
    assert record["strategy"] == {"name": "fleet", "replicas": 2, "servers": 3, "push_every": 5}
    rebuilt = rebuild(record, {}).trainer(progress=False).strategy
    assert rebuilt == Fleet(replicas=2, servers=3, push_every=5)
    resumed = here("resume", "run", "--epochs", "2")
    assert resumed.exit_code == 0, resumed.output
    assert read_config(folder / "run" / "run.toml")["recipe"]["strategy"] == record["strategy"]


def test_strategies_are_listed_with_their_options(here: Here) -> None:
    listed = here("strategies").stdout
    assert "\nhogwild: " in listed
    fleet = listed.partition("\nfleet: ")[2].splitlines()
    assert fleet[0] == "Trains like the synchronous strategy and has options of every kind."
    assert [line.split() for line in fleet if "push_every" in line] == [
        ["push_every=1", "int", "steps", "between", "pushes"]
    ]
    assert any(line.split() == ["replicas=none", "int", "or", "none"] for line in fleet)


def test_a_flag_of_another_strategy_is_refused(here: Here) -> None:
    done = here("train", "tiny.py", "--strategy", "hogwild", "--replicas", "2")
    assert done.exit_code == 2
    assert "The strategy hogwild has no option 'replicas'. It belongs to" in done.stderr
