"""Run directories: unique, never overwritten, and mistakes answered in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.errors import CheckpointError, ConfigError
from manyhands.run.directory import RunDirectory


def test_a_name_gives_fresh_directories_under_the_parent(tmp_path: Path) -> None:
    runs = [RunDirectory.create(tmp_path / "runs", "mnist").path for _ in range(4)]
    assert len(set(runs)) == 4
    assert all(run.parent == tmp_path / "runs" and run.is_dir() for run in runs)
    assert runs[0].name.startswith("mnist-20")


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("../my recipe.py", "my-recipe.py-"),
        ("...", "run-"),
        ("a/b\0c", "a-b-c-"),
        ("x" * 999, "xx"),
    ],
)
def test_any_name_gives_a_decent_folder(tmp_path: Path, name: str, start: str) -> None:
    made = RunDirectory.create(tmp_path, name).path
    assert made.parent == tmp_path
    assert made.name.startswith(start)


def test_an_exact_path_is_made_or_taken_when_empty(tmp_path: Path) -> None:
    assert RunDirectory.create(tmp_path / "a" / "b").path == tmp_path / "a" / "b"
    assert RunDirectory.create(str(tmp_path / "a" / "b")).path == tmp_path / "a" / "b"


def test_paths_do_not_follow_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunDirectory.create("here")
    monkeypatch.chdir("/")
    assert run.events_file == tmp_path / "here" / "events.jsonl"


def test_what_is_not_empty_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="exists and is not empty"):
        RunDirectory.create(tmp_path)
    (tmp_path / "run.toml").touch()
    with pytest.raises(ConfigError, match=r"holds a run\. Resume that run"):
        RunDirectory.create(tmp_path)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, name in [("file", "mnist"), ("file/deeper", "mnist"), ("file/deeper", None)]:
        with pytest.raises(ConfigError, match="file is a file"):
            RunDirectory.create(tmp_path / path, name)
    with pytest.raises(ConfigError, match=r"file can't be made: File exists"):
        RunDirectory.create(tmp_path / "file")


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be made"):
        RunDirectory.create("/proc/here", "mnist")
    with pytest.raises(ConfigError, match="File name too long"):
        RunDirectory.create(tmp_path / ("x" * 300))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_empty_directory_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="can't be written to"):
        RunDirectory.create(tmp_path)


def test_open_finds_a_run(tmp_path: Path) -> None:
    (tmp_path / "run.toml").touch()
    assert RunDirectory.open(tmp_path).path == tmp_path


def test_open_refuses_what_is_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing has that name"):
        RunDirectory.open(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="but a file"):
        RunDirectory.open(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"holds no run\.toml\.$"):
        RunDirectory.open(tmp_path)


def test_open_suggests_the_newest_run_inside(tmp_path: Path) -> None:
    for age, name in enumerate(["newest", "older", "oldest"]):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.toml").touch()
        os.utime(tmp_path / name / "run.toml", (1e9 - age, 1e9 - age))
    with pytest.raises(CheckpointError, match=r"Did you mean .*/newest\?"):
        RunDirectory.open(tmp_path)


HOLD = """
import os, sys
from pathlib import Path
from manyhands.run.directory import RunDirectory
with RunDirectory(Path(sys.argv[1])).in_use():
    child = os.fork()
    if child == 0:
        sys.stdin.read()
        os._exit(0)
    print("held", flush=True)
    os.waitpid(child, 0)
"""


def test_a_directory_in_use_is_refused_until_its_process_is_gone(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match="still going on"), run.in_use():
            pass
        holder.kill()
        holder.wait()
        # Its forked child lives on, and must not hold the lock.
        with run.in_use():
            pass
