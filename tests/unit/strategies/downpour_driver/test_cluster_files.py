"""What is taken from the disk when a run is resumed, and what is removed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import manyhands as mh
from manyhands.data import as_source
from manyhands.optim.native import rule_spec
from manyhands.optim.schedules import Constant
from manyhands.parameter_server.store.chunk_snapshot import SnapshotHeader, pack
from manyhands.parameter_server.store.folder import Store, cut_of
from manyhands.replica.steps import LossStep
from manyhands.strategies.downpour_driver.cluster_files import ClusterFiles
from manyhands.strategies.downpour_driver.plan import DownpourPlan
from manyhands.strategies.strategy import TrainingJob
from tests.conftest import blobs, small_net


def plan_for(run: Path | None, resumed_at: float | None, **options) -> DownpourPlan:
    from torch import nn

    source = as_source(blobs())
    job = TrainingJob(
        model=small_net(),
        step=LossStep(nn.CrossEntropyLoss()),
        rule=mh.optim.SGD(lr=0.1, momentum=0.9),
        schedule=Constant(),
        source=source,
        sample=source.fetch(np.arange(2), seed=0),
        batch_size=32,
        epochs=1,
        seed=0,
        shuffle=True,
        ema=None,
        emit=lambda event: None,
        run_dir=run,
        resumed_at=resumed_at,
    )
    return DownpourPlan(job, mh.Downpour(push="gradients", **options))


def fill(run: Path, plan: DownpourPlan, value: float, *, skip: int = 0) -> None:
    """Write every chunk but the first `skip` to the store, as servers would."""
    (run / "store").mkdir()
    store, shards = Store(run / "store"), plan.shard_map
    rules = [rule_spec(plan.server_rule)] * len(shards.parameters)
    with store.segment() as writer:
        for chunk in shards.chunks[skip:]:
            states = len(rules[0].state_starts)
            header = SnapshotHeader(
                version=7, begun=7, last_lease=1, arrays=1 + states, floats=chunk.floats, clients=0
            )
            arrays = [np.full(chunk.floats, value, np.float32)] * (1 + states)
            writer.add(cut_of(chunk, shards, rules), pack(header, arrays))


def test_what_is_newer_than_the_checkpoint_is_gone_on_from(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, resumed_at=1.0)
    fill(tmp_path, plan, 3.0)
    stored, trouble = ClusterFiles(plan).read_store()
    assert stored is not None
    assert trouble == ""
    assert set(np.unique(stored.weights)) <= {0.0, 3.0}
    write_back = ClusterFiles(plan).write_back()
    assert write_back is not None
    assert write_back.era == 2  # what is written now counts for more


@pytest.mark.parametrize("resumed_at", [None, 1e12], ids=["a new run", "an older store"])
def test_what_is_not_is_removed(tmp_path: Path, resumed_at: float | None) -> None:
    plan = plan_for(tmp_path, resumed_at)
    fill(tmp_path, plan, 3.0)
    assert ClusterFiles(plan).read_store() == (None, "")
    assert not list((tmp_path / "store").iterdir())


def test_a_store_that_lacks_something_is_told_of_and_not_used(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, resumed_at=1.0)
    fill(tmp_path, plan, 3.0, skip=1)
    stored, trouble = ClusterFiles(plan).read_store()
    assert stored is None
    assert trouble.startswith("Going on from the checkpoint: The store ")
    assert not list((tmp_path / "store").iterdir())


def test_nothing_is_written_back_without_a_place_or_when_not_wanted(tmp_path: Path) -> None:
    assert ClusterFiles(plan_for(None, None)).write_back() is None
    assert ClusterFiles(plan_for(tmp_path, None, write_back_s=None)).write_back() is None


def test_the_registry_goes_with_its_start_of_the_run(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, None)
    killed, next_one = ClusterFiles(plan), ClusterFiles(plan)
    first = killed.registry
    assert killed.registry == first
    assert next_one.registry != first
    assert len(os.listdir(tmp_path)) == 1
    next_one.close()
    assert os.listdir(tmp_path) == []
    shared = replace(plan.strategy, registry="etcd://127.0.0.1:2379")
    plan.strategy = shared
    assert ClusterFiles(plan).registry.startswith(f"etcd://127.0.0.1:2379/{tmp_path.name}-")
