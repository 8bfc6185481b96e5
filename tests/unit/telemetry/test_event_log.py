"""The event log: valid JSON lines, readable after a kill and after a resume."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from run_events import cluster, epoch_ended, progress, started

from manyhands.telemetry.event_log import EventLog, read_events
from manyhands.telemetry.events import CheckpointWritten, Note, ReplicaLost, WorkerLost


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_events_are_on_disk_line_by_line_before_close(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.handle(started())
    log.handle(epoch_ended(0))
    log.handle(WorkerLost(worker=1, pid=7, reason="killed", replaced_by=None))
    log.handle(CheckpointWritten(path=Path("/x/epoch-0001"), epoch=1))
    first, second, third, fourth = read_events(tmp_path / "events.jsonl")
    log.close()
    assert (first["event"], first["run_dir"], first["workers"]) == ("RunStarted", "/runs/net-1", 2)
    assert (second["event"], second["metrics"]) == ("EpochEnded", {"accuracy": 0.9871})
    assert third["replaced_by"] is None
    assert fourth["path"] == "/x/epoch-0001"
    assert datetime.fromisoformat(first["time"]).tzinfo is not None


def test_figures_unknown_to_json_become_null(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.handle(epoch_ended(0, train_loss=math.nan, metrics={"a": math.inf, "b": -math.inf}))
    log.close()
    line = (tmp_path / "events.jsonl").read_text()
    event = json.loads(line, parse_constant=refuse_constant)
    assert (event["train_loss"], event["metrics"]) == (None, {"a": None, "b": None})


def test_scalars_of_numpy_and_torch_are_numbers(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    metrics = {"a": np.float32(0.5), "b": torch.tensor(0.25), "c": np.int64(3)}
    log.handle(epoch_ended(0, metrics=metrics))  # type: ignore[arg-type]
    log.close()
    assert read_events(tmp_path / "events.jsonl")[0]["metrics"] == {"a": 0.5, "b": 0.25, "c": 3}


def test_progress_is_thinned(tmp_path: Path) -> None:
    now = 0.0
    log = EventLog(tmp_path / "events.jsonl", progress_every_s=5, clock=lambda: now)
    for tenth in range(200):
        now = tenth / 10
        log.handle(progress(0, tenth))
    log.close()
    events = read_events(tmp_path / "events.jsonl")
    assert [event["samples_done"] for event in events] == [0, 50, 100, 150]


def test_a_cluster_is_logged_with_every_figure(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.handle(cluster((8120.0, math.nan), refused=3))
    log.handle(ReplicaLost(replica=1, pid=7, reason="killed", returned=4, replaced_by=None))
    log.close()
    figures, lost = read_events(tmp_path / "events.jsonl")
    assert figures["event"] == "ClusterProgress"
    assert figures["replicas"] == [
        {"replica": 0, "samples_per_s": 8120.0},
        {"replica": 1, "samples_per_s": None},
    ]
    assert figures["server_load"] == [0.12, 0.09]
    assert (figures["staleness_max"], figures["pushed_bytes"]) == (5, 142_000_000)
    assert set(figures) == {"time", "event", *(field.name for field in fields(cluster()))}
    assert (lost["event"], lost["returned"], lost["replaced_by"]) == ("ReplicaLost", 4, None)


def test_looks_at_the_cluster_are_thinned_apart_from_progress(tmp_path: Path) -> None:
    now = 0.0
    log = EventLog(tmp_path / "events.jsonl", progress_every_s=5, clock=lambda: now)
    for second in range(12):
        now = float(second)
        log.handle(progress(0, second))
        log.handle(cluster(seen=second))
    log.close()
    events = read_events(tmp_path / "events.jsonl")
    assert [event["samples_seen"] for event in events if "replicas" in event] == [0, 5, 10]
    assert [event["samples_done"] for event in events if "loss" in event] == [0, 5, 10]


@pytest.mark.parametrize("cut", [1, 2, 30])
def test_half_a_line_is_passed_over_and_a_resumed_run_appends(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.handle(Note(message="one"))
    log.handle(Note(message="zwei ü"))
    log.close()
    path.write_bytes(path.read_bytes()[:-cut])
    lost = cut > 1  # the last newline alone is no loss
    assert [e["message"] for e in read_events(path)] == ["one", "zwei ü"][: 1 if lost else 2]
    log = EventLog(path)
    log.handle(Note(message="three"))
    log.close()
    messages = [event["message"] for event in read_events(path)]
    assert messages == (["one", "three"] if lost else ["one", "zwei ü", "three"])
