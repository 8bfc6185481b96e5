"""The doctor's findings and verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.cli import machine
from manyhands.cli.doctor import report
from manyhands.cli.machine import Finding, examine


def by_name(folder: Path) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(folder)}


def test_everything_promised_is_looked_at(tmp_path: Path) -> None:
    assert set(by_name(tmp_path)) >= {
        "python",
        "manyhands",
        "torch",
        "numpy",
        "native kernels",
        "cores",
        "NUMA nodes",
        "memory",
        "shared memory",
        "huge pages",
        "C++ compiler",
        "disk",
    }


def test_a_working_machine_is_said_to_work(tmp_path: Path) -> None:
    findings = examine(tmp_path)
    assert not [finding for finding in findings if finding.fatal]


def test_missing_package_is_fatal_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_PACKAGES", ("torch", "no_such_package"))
    found = by_name(tmp_path)["no_such_package"]
    assert found.fatal
    assert found.advice == "Install it with pip install no_such_package."
    assert report([found])[-1].startswith("Training can't work here yet: no_such_package missing")


def test_container_quota_below_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text("50000 100000\n")
    monkeypatch.setattr(machine, "_CPU_QUOTA", quota)
    assert by_name(tmp_path)["cores"].advice.startswith("Train with --workers 1:")


@pytest.mark.parametrize("text", ["max 100000\n", ""])
def test_no_quota_needs_no_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(text)
    monkeypatch.setattr(machine, "_CPU_QUOTA", quota)
    assert by_name(tmp_path)["cores"].advice == ""


@pytest.mark.parametrize(
    ("text", "value", "advised"),
    [
        ("always madvise [never]\n", "transparent, never", True),
        ("always [madvise] never\n", "transparent, madvise", False),
        ("", "this system doesn't say", False),
    ],
)
def test_huge_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, value: str, advised: bool
) -> None:
    setting = tmp_path / "enabled"
    setting.write_text(text)
    monkeypatch.setattr(machine, "_HUGE_PAGES", setting)
    found = by_name(tmp_path)["huge pages"]
    assert found.value == value
    assert bool(found.advice) is advised


def test_a_missing_compiler_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = by_name(tmp_path)["C++ compiler"]
    assert found.value.startswith("none found")
    assert not found.fatal


def test_verdicts() -> None:
    fine = Finding(name="a", value="1")
    lacking = Finding(name="b", value="2", advice="Do this.")
    assert report([fine])[-1] == "Everything is here. Try: manyhands train mnist_mlp"
    assert report([fine, lacking])[-3:] == [
        "b: Do this.",
        "",
        "Training works here; the advice above would make it better.",
    ]
